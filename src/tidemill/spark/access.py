"""The access of a query's processes to a cluster; keeps its secrets out of what Spark shows.

Spark prints the options of a query: in plans, on its pages, in its event log. It hides the value of an option whose name
or value matches `spark.redaction.regex`, by default `secret`, `password` and `token`. So it hides `kafka.sasl.password` and
`kafka.sasl.jaas.config`, and shows a private key: an option with a key that is not encrypted is refused here.

With `commandConfig` a query has no secret at all. It is a file of properties of Kafka's clients, which each process reads
for itself: at that path, or where `spark-submit --files` has put a file of that name. Only its `security.*`, `ssl.*` and
`sasl.*` count; an option of the query goes before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import BrokerUnreachable
from tidemill.client.connections.security import PREFIXES, SecurityOptions
from tidemill.client.fetch import FETCH_BYTES
from tidemill.errors import ConfigError
from tidemill.protocol.isolation import READ_UNCOMMITTED

COMMAND_CONFIG = "commandConfig"
_KAFKA = "kafka."
SECURITY_PREFIXES = tuple(f"{_KAFKA}{each}" for each in PREFIXES)
# The first line of PEM text that holds an unencrypted key.
_OPEN_KEYS = ("-----BEGIN PRIVATE KEY", "-----BEGIN RSA PRIVATE KEY", "-----BEGIN EC PRIVATE KEY")


def security_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The options that secure connections, by the names of Kafka's clients."""
    found = {
        name.removeprefix(_KAFKA): value
        for name, value in options.items()
        if name.startswith(SECURITY_PREFIXES)
    }
    for name, value in found.items():
        if any(each in value for each in _OPEN_KEYS):
            raise ConfigError(
                f"{_KAFKA}{name} has a private key in clear text, which Spark would show in plans and in its event log; "
                f"name a file instead, with kafka.ssl.key.location or {COMMAND_CONFIG}"
            )
    return found


@dataclass(frozen=True)
class BrokerAccess:
    """The connection settings of a query's processes, and what they may read. Sent to every task."""

    # Empty when only files are read.
    bootstrap: str
    client_id: str = "tidemill-spark"
    timeout_s: float = 60.0
    isolation_level: int = READ_UNCOMMITTED
    fetch_bytes: int = FETCH_BYTES
    # Kafka's names without `kafka.`; passwords are among them, so they stay out of every text.
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    # Its content is read where it is used and travels nowhere.
    config_file: str | None = None

    def __post_init__(self) -> None:
        self._security_options()

    def cluster(self) -> Cluster:
        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            timeout_s=self.timeout_s,
            security=self._security_options(),
        )

    def _security_options(self) -> SecurityOptions:
        return SecurityOptions.parse({**_properties(self.config_file), **self.security})

    def reached(self) -> Cluster:
        """A cluster for a task. The driver has reached the brokers, so a task waits for one that does not answer."""
        cluster = self.cluster()
        retries = cluster.retries(self.timeout_s)
        while True:
            try:
                cluster.any_broker()
            except BrokerUnreachable:
                if not retries.wait():
                    raise
            else:
                return cluster


def _properties(config_file: str | None) -> dict[str, str]:
    if config_file is None:
        return {}
    # The module loads all definitions of settings, which few queries need.
    from tidemill.config import parse_properties

    try:
        found = parse_properties(_found(config_file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(
            f"{COMMAND_CONFIG}={config_file} cannot be read: {reason.lower()}; each executor needs it at that path, or by "
            "spark-submit --files"
        ) from None
    return {name: value for name, value in found.items() if name.startswith(PREFIXES)}


def _found(config_file: str) -> Path:
    path = Path(config_file)
    if path.exists():
        return path
    from pyspark import SparkFiles

    try:
        sent = Path(SparkFiles.get(path.name))
    except (AttributeError, AssertionError, TypeError):
        # Spark does not run in this process.
        return path
    return sent if sent.exists() else path
