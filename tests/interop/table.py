"""The clients of the table, and which of them a behaviour runs with."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet

from tests.interop.aiokafka_client import AiokafkaClient
from tests.interop.clients import Client
from tests.interop.confluent_client import ConfluentClient
from tests.interop.kafka_python_client import KafkaPythonClient
from tests.interop.kcat_client import KcatClient

CLIENTS: tuple[type[Client], ...] = (ConfluentClient, AiokafkaClient, KafkaPythonClient, KcatClient)


def column(kind: type[Client]) -> ParameterSet:
    missing = kind.missing()
    return pytest.param(kind, id=kind.name, marks=[pytest.mark.skip(reason=missing)] if missing else [])


def installed() -> list[type[Client]]:
    return [kind for kind in CLIENTS if kind.missing() is None]


def with_clients(*capabilities: str) -> pytest.MarkDecorator:
    """Runs a behaviour with every client that has no gap in these capabilities."""
    able = [kind for kind in CLIENTS if not kind.gaps.keys() & set(capabilities)]
    return pytest.mark.parametrize("client", [column(kind) for kind in able], indirect=True)
