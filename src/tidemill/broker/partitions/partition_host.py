"""What a partition needs of the broker around it; `Replicas` is that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidemill.broker.disk.long_work import LongWork
from tidemill.broker.disk.syncer import Syncer
from tidemill.replication.leader import ProposeIsr

if TYPE_CHECKING:
    from tidemill.broker.partitions.partition import Partition


class Host(Protocol):
    @property
    def broker_id(self) -> int: ...
    @property
    def syncer(self) -> Syncer: ...
    @property
    def lag_time_max_ms(self) -> int: ...
    @property
    def long_work(self) -> LongWork: ...
    def wall_ms(self) -> int: ...
    def steady_ms(self) -> int:
        """Time that does not jump, for lags."""

    def eligible_epoch(self, broker_id: int) -> int | None:
        """The epoch of a broker that may be in an ISR; None for one that may not."""

    def propose(self, partition: Partition, proposal: ProposeIsr) -> None: ...
    def reconsider_later(self, partition: Partition) -> None: ...
    def went_offline(self, partition: Partition, reason: str) -> None: ...
