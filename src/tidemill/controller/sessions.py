"""The sessions of brokers: the time of the last heartbeat, and the metadata offset that it reported.

Nothing of this is in the log. Each active controller keeps its own sessions. A new one gives every broker a fresh
session, since it does not know the times of earlier heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidemill.controller.image import BrokerImage, MetadataImage
from tidemill.types import BrokerId

_NEVER_TOLD = -1


@dataclass(slots=True)
class Session:
    """The session of one broker."""

    last_contact_ms: int
    # Whether a request of the broker began or renewed the session; False when only a new controller did.
    was_heard: bool = False
    metadata_offset: int = _NEVER_TOLD
    # The last record of a controlled shutdown. The other brokers must have it before this one may stop.
    shutdown_offset: int | None = None


class Sessions:
    """The sessions of all brokers."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._by_broker: dict[BrokerId, Session] = {}

    def restart(self, brokers: Iterable[BrokerId], steady_ms: int) -> None:
        self._by_broker = {broker_id: Session(steady_ms) for broker_id in brokers}

    def begin(self, broker_id: BrokerId, steady_ms: int) -> None:
        self._by_broker[broker_id] = Session(steady_ms, was_heard=True)

    def renew(self, broker_id: BrokerId, steady_ms: int, metadata_offset: int) -> Session:
        session = self._by_broker.setdefault(broker_id, Session(steady_ms))
        session.last_contact_ms = steady_ms
        session.was_heard = True
        session.metadata_offset = metadata_offset
        return session

    def end(self, broker_id: BrokerId) -> None:
        self._by_broker.pop(broker_id, None)

    def is_live(self, broker: BrokerImage, steady_ms: int) -> bool:
        """Whether the broker is unfenced and its session has not expired."""
        session = self._by_broker.get(broker.id)
        return session is not None and not broker.is_fenced and steady_ms < self._end_ms(session)

    def was_heard(self, broker_id: BrokerId) -> bool:
        session = self._by_broker.get(broker_id)
        return session is not None and session.was_heard

    def deadline_ms(self, image: MetadataImage) -> int | None:
        """Returns the time at which the first session ends; 0 for a broker that never had one."""
        return min((self._broker_end_ms(broker) for broker in _unfenced(image)), default=None)

    def expired(self, image: MetadataImage, steady_ms: int) -> BrokerImage | None:
        """Returns the broker whose session expired first and that must be fenced; None when none has expired."""
        stale = min(_unfenced(image), key=self._broker_end_ms, default=None)
        return stale if stale is not None and self._broker_end_ms(stale) <= steady_ms else None

    def lowest_active_offset(self, image: MetadataImage) -> int | None:
        """The smallest metadata offset that an active broker has reported; None when no broker is active."""
        return min(
            (
                session.metadata_offset if (session := self._by_broker.get(broker.id)) else _NEVER_TOLD
                for broker in image.brokers.values()
                if broker.is_active
            ),
            default=None,
        )

    def _broker_end_ms(self, broker: BrokerImage) -> int:
        session = self._by_broker.get(broker.id)
        return 0 if session is None else self._end_ms(session)

    def _end_ms(self, session: Session) -> int:
        return session.last_contact_ms + self._timeout_ms


def _unfenced(image: MetadataImage) -> list[BrokerImage]:
    return [broker for broker in image.brokers.values() if not broker.is_fenced]
