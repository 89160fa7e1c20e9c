"""The way of this broker to the share coordinators, which keep the durable state of share partitions (Kafka: Persister).

The coordinator of a share partition is the leader of its key's partition of `__share_group_state`, which may be this
broker. Requests of one kind to one broker travel together: one is under way at a time, and what gathers meanwhile goes
with the next.

An error that a moment may heal (another coordinator, one that loads, a broken link) is retried a bounded number of
times at the coordinator of that moment. A repeated write is harmless: it carries the leader epoch and state epoch, and
the coordinator keeps the larger delivery count and state of each offset. When the retries are used up, the last error
is raised, and the outcome of a write is unknown.
"""

from __future__ import annotations

from tidemill.protocol.share_state import SharePartitionKey, ShareState, ShareStateChange, ShareStateSummary


class ShareStateClient:
    """Each call is about one share partition, and many may be made at once.

    They raise `ApiError`. FENCED_LEADER_EPOCH: a later leader of the partition has read or written. FENCED_STATE_EPOCH:
    the group's partition was initialised anew, or the state is another's. UNKNOWN_TOPIC_OR_PARTITION: the topic is
    deleted. INVALID_REQUEST: no such state, or a request that can never be right. Every other code is a failure after
    which the outcome is unknown: COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR,
    NETWORK_EXCEPTION.
    """

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begins the state anew. A state epoch that is not larger than the one there raises FENCED_STATE_EPOCH."""
        raise NotImplementedError

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """Returns the state for a leader that begins; from then on earlier leader epochs are fenced."""
        raise NotImplementedError

    async def write(self, key: SharePartitionKey, change: ShareStateChange) -> None:
        """Returns when the change is durable.

        Of two states of an offset the one with the larger delivery count stays, then the one with the larger delivery
        state (available 0, acknowledged 2, archived 4), whichever was written later. So writes under way may pass
        each other.
        """
        raise NotImplementedError

    async def delete(self, key: SharePartitionKey) -> None:
        """Removes the state; removing what is not there succeeds."""
        raise NotImplementedError

    async def read_summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> ShareStateSummary:
        """Returns start offset and lag's part without fencing any leader. No state: all fields are -1 or 0."""
        raise NotImplementedError

    def close(self) -> None:
        """Cancels what is under way."""
        raise NotImplementedError
