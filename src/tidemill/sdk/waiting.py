"""Calls of librdkafka that may take long: bounded in time, and open to Ctrl-C.

A signal reaches Python only between two calls into C, so a long wait is made of short ones. Some calls of librdkafka
have no time limit: committing offsets while the coordinator is away takes 45 seconds. They run in a thread that no
caller has to wait for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin._metadata import ClusterMetadata, TopicMetadata

from tidemill.sdk.errors import Unreachable
from tidemill.sdk.kafka_errors import NO_ANSWER, cause, one_line

T = TypeVar("T")

_SLICE_S = 0.5
_PAUSE_S = 0.02
_NEW_TOPIC_PAUSE_S = 0.1
_UNKNOWN_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


class Health:
    """The last state of a librdkafka client's connections, for messages that explain why no broker answers."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._reason = ""
        self.fatal: KafkaError | None = None
        # When all brokers were found to be down; None while one may be up.
        self.down_since_s: float | None = None

    def on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = error
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._reason = one_line(error.str())
        elif self.down_since_s is None:
            self.down_since_s = time.monotonic()

    def recovered(self) -> None:
        self.down_since_s, self._reason = None, ""

    def unreachable(self, doing: str, timeout_s: float) -> Unreachable:
        why = f" ({self._reason})" if self._reason else ""
        return Unreachable(
            f"{doing}: no answer from {self._bootstrap} within {timeout_s:g} s{why}; "
            "is the broker up, and the address right?",
            code="_TIMED_OUT",
            is_retriable=True,
        )


def patiently(
    call: Callable[[float], T], doing: str, timeout_s: float, health: Health, slice_s: float = _SLICE_S
) -> T:
    """`call(seconds)`, again while no broker answers; `Unreachable` when the time is over.

    Other errors are the caller's.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            return call(max(0.01, min(left_s, slice_s)))
        except KafkaException as failure:
            error = cause(failure)
            if error.fatal() or not (error.code() in NO_ANSWER or error.retriable()):
                raise
            if time.monotonic() >= deadline_s:
                raise health.unreachable(doing, timeout_s) from failure
        time.sleep(_PAUSE_S)


def topic_metadata(
    look: Callable[[str, float], ClusterMetadata],
    topic: str,
    doing: str,
    timeout_s: float,
    health: Health,
    new_topic_s: float,
) -> TopicMetadata:
    """Returns the cluster's metadata of a topic. One that was created a moment ago may be unknown for `new_topic_s`."""
    deadline_s = time.monotonic() + min(new_topic_s, timeout_s)
    while True:
        found = patiently(lambda seconds: look(topic, seconds), doing, timeout_s, health).topics[topic]
        is_unknown = found.error is not None and found.error.code() in _UNKNOWN_TOPIC
        if not is_unknown or time.monotonic() >= deadline_s:
            return found
        time.sleep(_NEW_TOPIC_PAUSE_S)


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Runs it in a thread that ends with the process, whether the call has or not."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="tidemill-sdk-call", daemon=True).start()
    return future
