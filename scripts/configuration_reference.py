"""Writes docs/configuration.md: every configuration key of brokers, topics and groups, from the tables that the code reads.

A test compares the file with what this would write, so that it is never stale.
"""

from __future__ import annotations

import unittest.mock
from collections.abc import Iterable
from pathlib import Path

from tidemill.cli.serving.http_listeners import KEYS as HTTP_KEYS
from tidemill.config import BROKER_KEYS, BrokerLayers, load_broker_config
from tidemill.config.broker import broker as brokers
from tidemill.config.definitions import ConfigKey, UpdateMode
from tidemill.config.group_configs import GROUP_KEYS, broker_key_of
from tidemill.config.keys.broker_topics import TOPICS_KEYS
from tidemill.config.keys.groups import GROUPS_KEYS
from tidemill.config.keys.log import LOG_KEYS
from tidemill.config.keys.node import NODE_KEYS
from tidemill.config.keys.topics import TOPIC_KEYS
from tidemill.config.share_groups import SHARE_ONLY_KEYS
from tidemill.config.values import Values

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

_PARTS = (
    ("The node: roles, listeners, quorum, replication", NODE_KEYS),
    ("Logs and their upkeep", LOG_KEYS),
    ("New topics, and defaults of topics", TOPICS_KEYS),
    ("Groups, offsets and transactions", GROUPS_KEYS),
)
_MODES = {UpdateMode.READ_ONLY: "no", UpdateMode.PER_BROKER: "per broker", UpdateMode.CLUSTER_WIDE: "yes"}
_INTRODUCTION = """\
# Configuration

Written by `make docs` from the tables that the code reads. Names, defaults and limits are Apache Kafka's.

A broker's settings come from three places; a later one overrides an earlier one: a file with `key=value` lines
(`tidemill serve --config server.properties`), `--set KEY=VALUE`, and dynamic settings (`tidemill configs set`). A topic's
settings come from the topic, otherwise from the broker key in the column "default from". At its start a broker logs every
key that it does not know, and every key of Kafka that has no effect here. It refuses to start with a key for protection
that it does not have, such as Kerberos ([security](security.md)). A key that begins with `ssl.` or `sasl.` may apply
to one listener: `listener.name.external.ssl.keystore.location`. It may also apply to one mechanism of a listener:
`listener.name.external.scram-sha-512.sasl.jaas.config`.

`tidemill serve` itself takes the keys of its HTTP listeners from the same file: see "HTTP listeners" below."""
_HTTP = """\
These are keys of `tidemill serve`, not of the broker: clients do not see them. `--status` and `--gateway` give the same
addresses. With `https://` a listener speaks TLS, with the certificate of its own `ssl.` keys or else of the broker's."""
_DYNAMIC = (
    '"Changes while it runs": with `tidemill configs set`, for all brokers or for one. Such a change counts within the time',
    "that metadata takes to reach a broker, and also after a start. When it is removed, the file's value or the default",
    "counts again. Everything else is refused with `Cannot update these configs dynamically`. That goes for listeners and",
    "their security, too, which Kafka changes while it runs. Files of certificates are read again when they change.",
    "`max.connections` and `max.connection.creation.rate` may be set for one listener:",
    "`listener.name.external.max.connections`. One change at most doubles or halves a number of threads or fetchers.",
)
# A listener with everything that secures one: what it needs is read for such listeners only.
_SECURED = {
    "log.dirs": "data",
    "listeners": "SASL_SSL://:9093,CONTROLLER://:9094",
    "listener.security.protocol.map": "SASL_SSL:SASL_SSL,CONTROLLER:SASL_SSL",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.bootstrap.servers": "controller:9094",
    "sasl.mechanism.controller.protocol": "OAUTHBEARER",
    "sasl.enabled.mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "file:///jwks.json",
    "sasl.oauthbearer.token.endpoint.url": "file:///token",
    "security.inter.broker.protocol": "SASL_SSL",
    "ssl.keystore.location": "broker.pem",
    "ssl.truststore.location": "ca.pem",
}


def keys_with_effect() -> set[str]:
    """Those that the code reads; `load_broker_config` warns about the others."""
    made: list[Values] = []

    class Recording(Values):
        def __init__(self, layers: BrokerLayers) -> None:
            super().__init__(layers)
            made.append(self)

    with unittest.mock.patch.object(brokers, "Values", Recording):
        load_broker_config({"log.dirs": "data"})
        load_broker_config(_SECURED)
    return {
        name for values in made for name in values.read if name in BROKER_KEYS
    } | brokers.REPLICATION_RATES


def _group_row(name: str) -> str:
    broker_key = broker_key_of(name)
    if broker_key is not None:
        return f"| `{name}` | from `{broker_key}` |"
    key = SHARE_ONLY_KEYS[name]
    return f"| `{name}` | `{key.default}`: {key.allowed()} |"


def render() -> str:
    effective = keys_with_effect()
    lines = [_INTRODUCTION, "", "## Topics", ""]
    lines += ["| key | default | allowed | default from | what it does |", "|---|---|---|---|---|"]
    lines += [_topic_row(key) for key in TOPIC_KEYS]
    lines += [
        "",
        "## Groups",
        "",
        "Set with `tidemill configs set group NAME KEY=VALUE`. What overrides a broker key stays within the limits of "
        "two others.",
        "",
    ]
    lines += ["| key | default |", "|---|---|"]
    lines += [_group_row(name) for name in GROUP_KEYS]
    lines += [
        "",
        "## Brokers",
        "",
        *_DYNAMIC,
    ]
    for title, keys in _PARTS:
        shown = sorted((key for key in keys if key.name in effective), key=lambda key: key.name)
        lines += [
            "",
            f"### {title}",
            "",
            "| key | default | allowed | changes while it runs | what it does |",
        ]
        lines += ["|---|---|---|---|---|", *map(_broker_row, shown)]
    lines += ["", "## HTTP listeners", "", _HTTP, "", "| key | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in sorted(HTTP_KEYS.items())]
    lines += ["", "## Known and without effect", "", *_without_effect(effective)]
    return "\n".join(lines) + "\n"


def _topic_row(key: ConfigKey) -> str:
    sources = ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)
    text = key.documentation + (" No effect yet." if key.name in brokers.TOPIC_KEYS_WITHOUT_EFFECT else "")
    return _row(f"`{key.name}`", _code(key.default), key.allowed(), sources, text)


def _broker_row(key: ConfigKey) -> str:
    return _row(f"`{key.name}`", _code(key.default), key.allowed(), _MODES[key.mode], key.documentation)


def _without_effect(effective: Iterable[str]) -> list[str]:
    names = sorted(set(BROKER_KEYS) - set(effective))
    dynamic = [name for name in names if not BROKER_KEYS[name].is_read_only]
    return [
        "Kafka has these keys, and a file may set them, but they have no effect here. The broker logs a line at its start",
        "when one is not at its default:",
        _codes(name for name in names if name not in dynamic),
        "",
        "These may also be set while brokers run, as in Kafka, and have no effect either: a broker has one event loop, no",
        "threads for requests, logs are compacted one after the other, and there is no tiered storage:",
        _codes(dynamic),
    ]


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) + "."


def _code(text: str | None) -> str:
    if text is None:
        return "none"
    return f"`{text}`" if text else "empty"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"


def main() -> None:
    TARGET.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
