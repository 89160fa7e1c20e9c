"""Decides when the same request may be sent again, and how long it is tried.

Rules, in the order in which they are applied:

- A topic that the cluster does not know is an answer, not a hiccup, although Kafka calls its code retriable.
- A lost connection or a timeout leaves open whether the request took effect. It is repeated only when
  repeating does no harm.
- Otherwise the error code decides (`ErrorCode.retriable`), and a broker that cannot be reached is tried again.

Waits double from `BACKOFF_S` to `BACKOFF_S_MAX`; when the limit is used up, the last failure stands.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.client.connections.connection import BrokerUnreachable, ConnectionLost
from tidemill.errors import ApiError, ErrorCode, TidemillError

BACKOFF_S = 0.05
BACKOFF_S_MAX = 1.0

_OUTCOME_UNKNOWN = {ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION}


class UnknownTopic(ApiError):
    """The cluster has no such topic or partition. Never retried."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def may_retry(failure: TidemillError, *, is_repeatable: bool) -> bool:
    match failure:
        case UnknownTopic():
            return False
        case BrokerUnreachable():
            return True
        case ConnectionLost():
            return is_repeatable
        case ApiError():
            return failure.code.retriable and (is_repeatable or failure.code not in _OUTCOME_UNKNOWN)
    return False


class Retries:
    """The waits of one operation."""

    def __init__(self, limit_s: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._clock = clock
        self._sleep = sleep
        self._deadline = clock() + limit_s
        self._backoff_s = BACKOFF_S

    def wait(self) -> bool:
        """Waits before the next try. False, without a wait, when there is no time for one."""
        if self._clock() + self._backoff_s > self._deadline:
            return False
        self._sleep(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_S_MAX)
        return True
