"""Which requests of one connection may be under way together.

Kafka handles one request of a connection at a time. Here a request waits only where an answer could tell the difference:

* One that changes or reads anything but records (ALONE) begins when every request before it is answered, waiting fetches
  excepted, and nothing begins before it is answered itself. Most are answered at once and so never wait.
* Produce requests follow each other without waiting for answers: they are appended in order as they come. With acks=all or
  `flush.messages` many share one round trip to the replicas, or one sync.
* A fetch begins when the writes before it are answered. It may wait long for records and holds back nothing.
* What nodes of the cluster send each other (INDEPENDENT) comes from many callers that share a connection. Each waits for its
  own answer, so nothing waits for another.
"""

from __future__ import annotations

from enum import Enum


class Order(Enum):
    """What a request waits for, and what waits for it."""

    ALONE = 1
    PRODUCE = 2
    FETCH = 3
    INDEPENDENT = 4


class InFlight:
    """The requests of one connection that later ones may have to wait for."""

    __slots__ = ("alone", "produces")

    def __init__(self) -> None:
        self.alone = 0
        self.produces = 0

    def admits(self, order: Order) -> bool:
        """Whether a request of that kind may begin now."""
        if order is Order.INDEPENDENT:
            return True
        return not self.alone and (order is Order.PRODUCE or not self.produces)

    def began(self, order: Order) -> None:
        if order is Order.PRODUCE:
            self.produces += 1
        elif order is Order.ALONE:
            self.alone += 1

    def ended(self, order: Order) -> None:
        if order is Order.PRODUCE:
            self.produces -= 1
        elif order is Order.ALONE:
            self.alone -= 1
