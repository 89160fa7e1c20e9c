"""kcat, the command line client: a process per call. It carries text, so the table gives it text.

Records go in through stdin, with control characters between key and value and between records; they come out as
one JSON object per line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tests.brokers import readable
from tests.interop.clients import (
    LIMIT_S,
    MESSAGE_TOO_LARGE,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    ClientError,
    Delivery,
    Headers,
    Message,
    Received,
)

NO_ADMIN = "it has no admin commands"
KEY_END = "\x1f"
RECORD_END = "\x1e"
REFUSALS = {
    "Message size too large": MESSAGE_TOO_LARGE,
    "Unknown topic or partition": UNKNOWN_TOPIC_OR_PARTITION,
}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _refusal(stderr: str) -> ClientError:
    codes = [code for text, code in REFUSALS.items() if text in stderr]
    return ClientError(codes[0] if codes else -1, stderr)


class _Reader:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._unread = b""

    def next(self, limit_s: float = LIMIT_S) -> Received:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            chunk = (
                os.read(descriptor, 1 << 20) if readable([descriptor], deadline - time.monotonic()) else b""
            )
            if not chunk:
                raise AssertionError(
                    f"kcat gave no record within {limit_s:g} s (exit {self._process.poll()})"
                )
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        return _received(json.loads(line))


def _received(record: dict[str, Any]) -> Received:
    flat = record.get("headers", [])
    headers: Headers = tuple((name, _bytes(value)) for name, value in zip(flat[::2], flat[1::2], strict=True))
    return Received(
        record["partition"],
        record["offset"],
        _bytes(record["key"]),
        _bytes(record["payload"]),
        headers,
        record["ts"],
        record["tstype"] == "logappend",
    )


class KcatClient(Client):
    name = "kcat"
    gaps: ClassVar[Mapping[str, str]] = {
        "create_topic": NO_ADMIN,
        "delete_topic": NO_ADMIN,
        "create_partitions": NO_ADMIN,
        "describe_configs": NO_ADMIN,
        "alter_configs": NO_ADMIN,
        "replace_configs": NO_ADMIN,
        "delete_records": NO_ADMIN,
        "list_groups": NO_ADMIN,
        "describe_group": NO_ADMIN,
        "delete_group": NO_ADMIN,
        "group_offsets": NO_ADMIN,
        "alter_group_offsets": NO_ADMIN,
        "delete_group_offsets": NO_ADMIN,
        "offset_of_newest": "its query mode knows earliest, latest and timestamps",
        "produce timestamps": "it has no option for a record's timestamp",
        "produce reports": "it does not print where a record went",
    }

    @classmethod
    def missing(cls) -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed: apt-get install kcat"

    def _kcat(self, *arguments: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            ["kcat", "-b", self.bootstrap, "-m", "20", *arguments],
            input=stdin,
            capture_output=True,
            timeout=2 * LIMIT_S,
        )
        stderr = done.stderr.decode(errors="replace")
        if done.returncode != 0 or "Delivery failed" in stderr:
            raise _refusal(stderr)
        return done.stdout.decode()

    def _metadata(self, *arguments: str) -> dict[str, Any]:
        listed: dict[str, Any] = json.loads(self._kcat("-L", "-J", *arguments))
        return listed

    def brokers(self) -> set[str]:
        return {broker["name"] for broker in self._metadata()["brokers"]}

    def list_topics(self) -> set[str]:
        return {topic["topic"] for topic in self._metadata()["topics"]}

    def partitions(self, topic: str) -> set[int]:
        listed = [one for one in self._metadata()["topics"] if one["topic"] == topic]
        return {partition["partition"] for one in listed for partition in one["partitions"]}

    def produce(
        self,
        topic: str,
        messages: Sequence[Message],
        *,
        compression: str = "none",
        acks: str = "all",
        idempotent: bool = False,
    ) -> list[Delivery]:
        """Records that share their options go in one call, so that they can share a batch."""
        options = ["-P", "-t", topic, "-Z", "-D", RECORD_END, "-z", compression]
        for name, value in {
            "topic.acks": acks,
            "topic.partitioner": "murmur2_random",
            "enable.idempotence": str(idempotent).lower(),
            "message.max.bytes": "50000000",
            "linger.ms": "20",
        }.items():
            options += ["-X", f"{name}={value}"]
        for (headers, partition), group in itertools.groupby(messages, lambda m: (m.headers, m.partition)):
            extra = [] if partition is None else ["-p", str(partition)]
            for name, content in headers:
                extra += ["-H", name if content is None else f"{name}={content.decode()}"]
            lines = [_line(message, self._gap) for message in group]
            self._kcat(*options, "-K", KEY_END, *extra, stdin=RECORD_END.join(lines).encode())
        return []

    @contextlib.contextmanager
    def reader(
        self, topic: str, partition: int, offset: int, *, reset: str = "none", wait_ms_max: int = 500
    ) -> Iterator[_Reader]:
        arguments = ["kcat", "-b", self.bootstrap, "-C", "-t", topic, "-p", str(partition), "-o", str(offset)]
        arguments += ["-J", "-u", "-q", "-X", f"fetch.wait.max.ms={wait_ms_max}"]
        arguments += ["-X", f"topic.auto.offset.reset={'error' if reset == 'none' else reset}"]
        process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            yield _Reader(process)
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def _query(self, topic: str, partition: int, timestamp_ms: int) -> int:
        shown = self._kcat("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}")
        match = re.search(r"offset (-?\d+)", shown)
        assert match is not None, shown
        return int(match[1])

    def beginning_offset(self, topic: str, partition: int) -> int:
        return self._query(topic, partition, -2)

    def end_offset(self, topic: str, partition: int) -> int:
        return self._query(topic, partition, -1)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        offset = self._query(topic, partition, timestamp_ms)
        return None if offset < 0 else offset


def _line(message: Message, gap: Any) -> str:
    if message.timestamp_ms is not None:
        gap("produce timestamps")
    key = (message.key or b"").decode()
    return f"{key}{KEY_END}{(message.value or b'').decode()}"
