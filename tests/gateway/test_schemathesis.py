"""The API against its own OpenAPI document: schemathesis makes requests of it, valid and not, and judges the answers.

All of schemathesis' checks are on. One exception is declared to it. The cluster may refuse a request that fits the
schema (a topic that exists already, a setting that is read-only). That is a 400 with the code 40002 and nothing else.

`TIDEMILL_SCHEMATHESIS_EXAMPLES=200 pytest tests/gateway/test_schemathesis.py` searches longer.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CheckContext
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.gateway.conftest import Gateway
from tidemill.gateway.app import create_app
from tidemill.gateway.settings import Settings

EXAMPLES = int(os.environ.get("TIDEMILL_SCHEMATHESIS_EXAMPLES", "2"))
REFUSED_BY_THE_CLUSTER = 40002
CLUSTER_ID = "the-cluster-that-is-there"

schema = schemathesis.openapi.from_dict(create_app(Settings()).state.openapi)
schema.config.parameters = {"path.cluster_id": CLUSTER_ID}

schemathesis.serializer.alias("application/x-ndjson", "application/json")


@pytest.fixture(scope="module")
def cluster_id(gateway: Gateway) -> str:
    gateway.broker.create_topic("orders", 2)
    gateway.broker.produce("orders", "first")
    gateway.broker.create_topic("later", configs={"tidemill.delays.enable": "true"})
    gateway.broker.produce("later", "not yet", headers={"tidemill-delay": "1d"})
    return gateway.cluster_id


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """A connection that is kept: most of the time would go into making new ones."""
    with requests.Session() as kept:
        yield kept


@schemathesis.check
def valid_requests_are_refused_by_the_cluster_only(
    ctx: CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> bool | None:
    if response.status_code == 400 and response.json()["error_code"] == REFUSED_BY_THE_CLUSTER:
        return None
    return positive_data_acceptance(ctx, response, case)


# The parameter makes the ids of the operations differ. Without one, pytest gives all of them the same id, and xdist
# runs the first one only.
@pytest.mark.parametrize("examples", [EXAMPLES])
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(
    case: schemathesis.Case[Any],
    examples: int,
    gateway: Gateway,
    cluster_id: str,
    session: requests.Session,
) -> None:
    assert examples == EXAMPLES
    if case.path_parameters.get("cluster_id") == CLUSTER_ID:
        case.path_parameters["cluster_id"] = cluster_id
    case.call_and_validate(base_url=gateway.url, session=session, excluded_checks=[positive_data_acceptance])
