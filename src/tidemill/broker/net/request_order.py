"""Decides which requests of one connection may be under way together.

Kafka handles one request of a connection at a time. Here a request waits only where an answer could tell the difference:

* One that changes or reads anything but records (ALONE) begins when every request before it is answered, waiting fetches
  excepted, and nothing begins before it is answered itself. Most are answered at once and so never wait.
* Produce requests follow each other without waiting for answers: they are appended in order as they come. With acks=all or
  `flush.messages` many share one round trip to the replicas, or one sync. One without a response (acks=0) counts as
  answered when its records are appended.
* A fetch begins when the writes before it are answered. It may wait long for records and holds back nothing.
* What nodes of the cluster send each other (INDEPENDENT) comes from many callers that share a connection. Each waits for its
  own answer, so nothing waits for another.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

_KEY_AND_VERSION = struct.Struct(">hh")


class Order(Enum):
    """The order of requests on a connection: which others a request waits for, and which wait for it."""

    ALONE = 1
    PRODUCE = 2
    FETCH = 3
    INDEPENDENT = 4


class _Declared(NamedTuple):
    order: Order
    independent_since: int | None


# By API key. Declared by the handler of the API; requests of other APIs are refused and wait for nothing.
_DECLARED: dict[int, _Declared] = {}


def declare(api_key: int, order: Order, independent_since: int | None) -> None:
    """The order of an API's requests. From `independent_since` on, only nodes of the cluster send them."""
    _DECLARED[api_key] = _Declared(order, independent_since)


def order_in(api_key: int, version: int) -> Order:
    declared = _DECLARED.get(api_key)
    if declared is None:
        return Order.INDEPENDENT
    order, since = declared
    return order if since is None or version < since else Order.INDEPENDENT


def order_of(frame: memoryview) -> Order:
    """Returns the order of the request in a frame; one that will be refused waits for nothing."""
    if len(frame) < _KEY_AND_VERSION.size:
        return Order.INDEPENDENT
    return order_in(*_KEY_AND_VERSION.unpack_from(frame))


class InFlight:
    """The requests of one connection that later ones may have to wait for."""

    __slots__ = ("_produces", "count")

    def __init__(self) -> None:
        self._produces = 0
        # Of all kinds that others wait for: while it is 0, every request may begin.
        self.count = 0

    def admits(self, order: Order) -> bool:
        """Whether a request of that kind may begin now."""
        if order is Order.INDEPENDENT:
            return True
        return self.count == (self._produces if order is Order.PRODUCE else 0)

    def began(self, order: Order) -> None:
        self._add(order, 1)

    def ended(self, order: Order) -> None:
        self._add(order, -1)

    def _add(self, order: Order, number: int) -> None:
        if order is Order.PRODUCE:
            self._produces += number
        if order in (Order.PRODUCE, Order.ALONE):
            self.count += number
