"""Names the topics and groups of queues and exchanges. No I/O.

A name that Kafka allows for a topic is kept. Any other name is cut, cleaned and marked with a hash, so that different
queues never share a topic. So is one that is too long, or that would be taken for another kind of topic. A virtual host
other than `/` is a prefix.

    orders                  the queue `orders`, and its share group
    orders.priority-9       its messages of priority 9
    celery.pidbox.exchange  the stream of the exchange `celery.pidbox`, for transient queues
    kombu.bindings          which queue is bound to which exchange
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256

from tidemill.errors import ConfigError

DEFAULT_EXCHANGE = "amq.default"
PRIORITY_STEPS = (0, 3, 6, 9)
PRIORITY_MAX = 9

_NAME_CHARACTERS_MAX = 249
_VIRTUAL_HOST_CHARACTERS_MAX = 60
_BINDINGS = "kombu.bindings"
_EXCHANGE = ".exchange"
_PRIORITY = ".priority-"
_LONGEST_SUFFIX = len(_PRIORITY) + 1
_HASH_CHARACTERS = 16
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_ILLEGAL = re.compile(r"[^a-zA-Z0-9.-]+")
_RESERVED = re.compile(
    rf"__.*|\.\.?|{re.escape(_BINDINGS)}|.*({re.escape(_EXCHANGE)}|{re.escape(_PRIORITY)}\d)"
)


class Names:
    def __init__(self, virtual_host: str, priority_steps: Sequence[int] = PRIORITY_STEPS) -> None:
        host = virtual_host.strip("/")
        self._prefix = f"{_safe(host, _VIRTUAL_HOST_CHARACTERS_MAX)}." if host else ""
        self._characters_max = _NAME_CHARACTERS_MAX - len(self._prefix) - _LONGEST_SUFFIX
        self._steps = sorted(set(priority_steps))
        if not self._steps or not 0 <= self._steps[0] <= self._steps[-1] <= PRIORITY_MAX:
            raise ConfigError(f"priority_steps are numbers from 0 to {PRIORITY_MAX}, at least one")

    @property
    def bindings(self) -> str:
        return self._prefix + _BINDINGS

    def group(self, queue: str) -> str:
        return self._prefix + _safe(queue, self._characters_max)

    def topic(self, queue: str, priority: int = 0) -> str:
        """The topic of a queue's messages of that priority: that of the highest step which is not above it."""
        step = max((each for each in self._steps if each <= priority), default=self._steps[0])
        suffix = "" if step == self._steps[0] else f"{_PRIORITY}{step}"
        return self.group(queue) + suffix

    def topics(self, queue: str) -> list[str]:
        """All that the queue may have, the highest priority first."""
        return [self.topic(queue, step) for step in reversed(self._steps)]

    def stream(self, exchange: str) -> str:
        return self._prefix + _safe(exchange or DEFAULT_EXCHANGE, self._characters_max) + _EXCHANGE


def _safe(name: str, characters_max: int) -> str:
    if len(name) <= characters_max and _LEGAL.fullmatch(name) and not _RESERVED.fullmatch(name):
        return name
    cleaned = _ILLEGAL.sub("-", name).strip("-.")[: characters_max - _HASH_CHARACTERS - 1]
    return f"{cleaned}-{sha256(name.encode()).hexdigest()[:_HASH_CHARACTERS]}"
