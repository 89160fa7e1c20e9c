"""Clients that ask for much do not keep the others waiting."""

from __future__ import annotations

import contextlib
import threading

from tests.brokers import RunningBroker
from tests.wire import messages
from tests.wire.batches import encode
from tests.wire.connection import Connection

HOGS = 10
REQUESTS = 400
ROUND_TRIPS = 10


def test_a_client_is_served_beside_ten_that_pipeline_hundreds_of_requests(
    target: RunningBroker, topic: str
) -> None:
    """Its round trips are over long before the others have their answers."""
    with Connection(target) as setup:
        setup.create_topic(topic)
        (broker,) = setup.request("metadata", 12, topics=[]).brokers
    node = str(broker.node_id)
    resources = [{"resource_type": 4, "resource_name": node}]
    asked = messages.request("describe_configs", 4, resources=resources, include_synonyms=True)
    requests = asked * REQUESTS
    answered = [0] * HOGS
    has_begun = threading.Event()

    def take(number: int, hog: Connection) -> None:
        for _ in range(REQUESTS):
            hog.receive_frame()
            answered[number] += 1
            has_begun.set()

    with contextlib.ExitStack() as stack:
        hogs = [stack.enter_context(Connection(target, 120.0)) for _ in range(HOGS)]
        innocent = stack.enter_context(Connection(target))
        takers = [threading.Thread(target=take, args=each) for each in enumerate(hogs)]
        for taker, hog in zip(takers, hogs, strict=True):
            taker.start()
            hog.send(requests)
        assert has_begun.wait(60)
        before = sum(answered)
        for _ in range(ROUND_TRIPS):
            assert innocent.produce(topic, encode([b"x"])).error_code == 0
        meanwhile = sum(answered) - before
        for taker in takers:
            taker.join()
    assert answered == [REQUESTS] * HOGS
    # A round trip waits for one turn of each, and a turn has room for a handful of these.
    assert meanwhile < HOGS * REQUESTS / 2
