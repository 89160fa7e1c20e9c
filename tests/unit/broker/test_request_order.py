"""Requests of one connection that may be in flight together."""

from __future__ import annotations

import struct

import pytest

from tidemill.broker.net.request_order import InFlight, Order, order_in, order_of
from tidemill.broker.requests import handlers
from tidemill.broker.requests.api_table import TABLE, Scope

assert handlers  # importing them fills the dispatch table

# What each kind may begin behind, when that is not answered yet.
MAY_FOLLOW = {
    Order.ALONE: {Order.FETCH, Order.INDEPENDENT},
    Order.PRODUCE: {Order.PRODUCE, Order.FETCH, Order.INDEPENDENT},
    Order.FETCH: {Order.FETCH, Order.INDEPENDENT},
    Order.INDEPENDENT: set(Order),
}
ADD_PARTITIONS_TO_TXN = 24


@pytest.mark.parametrize("unanswered", Order)
@pytest.mark.parametrize("later", Order)
def test_a_request_waits_for_what_its_answer_depends_on(unanswered: Order, later: Order) -> None:
    in_flight = InFlight()
    in_flight.began(unanswered)
    assert in_flight.admits(later) == (unanswered in MAY_FOLLOW[later])
    in_flight.ended(unanswered)
    assert in_flight.admits(later)


def test_a_request_waits_for_all_before_it() -> None:
    in_flight = InFlight()
    for _ in range(2):
        in_flight.began(Order.PRODUCE)
    in_flight.ended(Order.PRODUCE)
    assert not in_flight.admits(Order.ALONE)
    in_flight.ended(Order.PRODUCE)
    assert in_flight.admits(Order.ALONE)


def test_only_produce_and_fetch_and_what_nodes_send_need_not_be_alone() -> None:
    others = {
        api.name
        for api in TABLE.values()
        if order_in(api.key, api.versions.min) is not Order.ALONE and api.scope is not Scope.CONTROLLER
    }
    # Only nodes send WriteTxnMarkers, whose versions begin with that, and the requests to share coordinators.
    of_nodes = {name for name in others if name.endswith(("ShareGroupState", "ShareGroupStateSummary"))}
    assert len(of_nodes) == 5
    assert others - of_nodes == {"Produce", "Fetch", "ShareFetch", "WriteTxnMarkers"}
    assert all(
        order_in(api.key, api.versions.min) is Order.INDEPENDENT
        for api in TABLE.values()
        if api.scope is Scope.CONTROLLER
    )


def test_later_versions_may_be_for_nodes_only() -> None:
    assert order_of(memoryview(struct.pack(">hh", ADD_PARTITIONS_TO_TXN, 3))) is Order.ALONE
    assert order_of(memoryview(struct.pack(">hh", ADD_PARTITIONS_TO_TXN, 4))) is Order.INDEPENDENT


def test_request_that_will_be_refused_waits_for_nothing() -> None:
    assert order_of(memoryview(b"\0")) is Order.INDEPENDENT
    assert order_of(memoryview(struct.pack(">hh", 999, 0))) is Order.INDEPENDENT
