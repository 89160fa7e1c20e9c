"""Apache Kafka's own command-line tools, each call a process. `make interop-java` fetches their jars."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench import maven

from tests.interop.other_clients import Conversation

FOLDER = Path(maven.__file__).parent / "kafka_tools"
LIMIT_S = 120.0
ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
CONSOLE_PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
CONSOLE_SHARE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
VERIFIABLE_SHARE_CONSUMER = "org.apache.kafka.tools.VerifiableShareConsumer"
SHARE_CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ShareConsumerPerformance"
SHARE_GROUPS = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


def missing() -> str | None:
    """None when the tools can run; else one line that says what to do."""
    if shutil.which("java") is None:
        return "Kafka's tools need a Java 17 runtime on PATH"
    return None if maven.has_jars(FOLDER) else "Kafka's tools are not here: `make interop-java` fetches them"


def run_tool(main: str, *arguments: str, stdin: bytes = b"", java: tuple[str, ...] = ()) -> str:
    """The standard output of a tool that succeeds."""
    log4j = f"-Dlog4j2.configurationFile={FOLDER / 'log4j2.properties'}"
    options = ("-Xmx256M", "-XX:TieredStopAtLevel=1", log4j, *java)
    command = ["java", *options, "-cp", f"{FOLDER}/target/jars/*", main, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=LIMIT_S)
    printed = done.stdout.decode()
    assert done.returncode == 0, f"{main} {arguments}\n{printed}\n{done.stderr.decode()[-3000:]}"
    return printed


def start_client(*arguments: str) -> Conversation:
    """Kafka's own client as a program that talks (others/java/Live.java), with the arguments of `other_clients`.

    A member's last argument is the protocol of its group: classic, consumer or share.
    """
    log4j = f"-Dlog4j2.configurationFile={FOLDER / 'log4j2.properties'}"
    command = ["java", "-Xmx128M", "-XX:TieredStopAtLevel=1", log4j, "-cp", f"{FOLDER}/target/jars/*"]
    folder = Path(__file__).parent / "others" / "java"
    return Conversation("Java", [*command, "Live.java", *arguments], folder)


def main() -> None:
    maven.jars(FOLDER, "Apache Kafka's tools")


if __name__ == "__main__":
    main()
