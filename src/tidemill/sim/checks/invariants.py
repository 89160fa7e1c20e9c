"""The invariants of a running cluster, checked from outside after every turn of a process.

`after_turn` inspects the process that just ran and compares it with everything seen of the others. It keeps its
position, so that it reads only new batches. Ledgers hold facts that must never be contradicted: the batch at an
offset, the leader of an epoch, the vote of a voter, the committed batches.

The functions are named after the guarantees in `ARCHITECTURE.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from tidemill.broker.partitions.partition import Partition
from tidemill.broker.quorum.quorum import Quorum
from tidemill.controller.image import MetadataImage
from tidemill.controller.topics.fewer_partitions import active_partitions, removed_epochs
from tidemill.log.log import Log
from tidemill.protocol.records import BatchHeader, InvalidBatch, split_batches
from tidemill.raft.core import RaftMachine
from tidemill.raft.roles import Leader
from tidemill.replication.leader import PartitionLeader
from tidemill.sim.checks.open_transactions import OpenTransactions
from tidemill.sim.checks.replayed import differences
from tidemill.sim.cluster import Cluster, Machine, Process
from tidemill.sim.platform.loops import SimulatedLoop

_READ_BYTES = 1 << 16
# The metadata log is read like a partition; no topic has this id.
_METADATA_KEY = (b"metadata", 0, -1)
# A topic id, an index, and the last leader epoch of the partition that had this index before; -1 when none had.
Key = tuple[bytes, int, int]
# A producer, the first offset of its transaction, and the offset of the marker.
Aborted = tuple[int, int, int]


class _Batch(NamedTuple):
    """A batch as it was seen in a log."""

    next_offset: int
    epoch: int
    crc: int


@dataclass(slots=True)
class _Ledger:
    """The ledger of one partition: every batch ever seen, and the committed ones."""

    # (base offset, epoch) -> CRC: log matching.
    crcs: dict[tuple[int, int], int] = field(default_factory=dict)
    committed: dict[int, _Batch] = field(default_factory=dict)
    committed_end: int = 0
    # Offsets that were committed and deleted between two readings.
    unseen: list[range] = field(default_factory=list)
    leaders: dict[int, int] = field(default_factory=dict)
    # The leader epochs in which the partition is decommissioned.
    decommissioned: set[int] = field(default_factory=set)
    # The aborted transactions that any replica has had.
    aborted: set[Aborted] = field(default_factory=set)
    # The highest committed end in each leader epoch.
    shown: dict[int, int] = field(default_factory=dict)

    def is_unseen(self, offset: int) -> bool:
        return any(offset in offsets for offsets in self.unseen)

    def show(self, epoch: int, end: int) -> None:
        self.shown[epoch] = max(self.shown.get(epoch, 0), end)

    def committed_before(self, epoch: int) -> int:
        """Returns the end of the records that a leader of this epoch must have.

        Later epochs do not count: a leader may learn of its election after others have replaced it.
        """
        return max((end for shown, end in self.shown.items() if shown < epoch), default=0)


@dataclass(slots=True)
class _Seen:
    """The progress of reading one process's replica."""

    log: Log | None = None
    log_end: int = -1
    high_watermark: int = -1
    committed_end: int = 0
    led_epoch: int = -1
    isr: tuple[int, ...] = ()
    # The batches at the last reading.
    batches: dict[int, _Batch] = field(default_factory=dict)
    # Derived from the batches up to `committed_end`.
    transactions: OpenTransactions = field(default_factory=OpenTransactions)
    stable_offset: int = -1
    stable_epoch: int = -1
    aborted_seen: int = -1


class Invariants:
    """The checks and their ledgers."""

    def __init__(self, cluster: Cluster, accuse: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._accuse = accuse
        self._ledgers: dict[Key, _Ledger] = {}
        self._seen: dict[tuple[SimulatedLoop, Key], _Seen] = {}
        self._looked_at: dict[Partition, _Seen] = {}
        self._keys: dict[Partition, Key] = {}
        self._machines = {machine.host: machine for machine in cluster.machines.values()}
        self._quorum_leaders: dict[int, int] = {}
        # The end of the metadata log that each voter has claimed to have on disk.
        self._vouched: dict[int, int] = {}
        self._elections: dict[int, tuple[SimulatedLoop, int, int | None]] = {}

    def after_turn(self, loop: SimulatedLoop) -> None:
        """Check everything that the process may have changed in its turn."""
        machine = self._machines.get(loop.name)
        if machine is None or machine.process is None or machine.process.loop is not loop:
            return
        process = machine.process
        node = process.node
        if node is None:
            return
        quorum = getattr(node, "_quorum", None)
        # A state that could not be persisted is sent to no other node, or only after it is persisted.
        if quorum is not None and quorum.machine is not None and not self._is_silent(quorum):
            self._check_quorum(machine, process, quorum)
        replicas = getattr(node, "_replicas", None)
        if replicas is not None:
            self._check_replicas(machine, process, replicas.by_name)

    @staticmethod
    def _is_silent(quorum: Quorum) -> bool:
        return quorum._has_failed or quorum.is_waiting_for_space

    def committed_metadata_end(self) -> int:
        """The end of the metadata that any node has known to be committed."""
        return max(self._ledger(_METADATA_KEY).shown.values(), default=0)

    # -- the quorum ------------------------------------------------------------------------------------------

    def _check_quorum(self, machine: Machine, process: Process, quorum: Quorum) -> None:
        raft, log = quorum.machine, quorum.log.log
        assert raft is not None
        epoch = raft.epoch
        seen = self._seen_of(process, _METADATA_KEY)
        if seen.log is None and not quorum.log.is_incomplete:
            self._nothing_vouched_for_is_lost(machine, log)
        vouched = min(raft.synced_end_offset, log.log_end_offset)
        if quorum.log.is_incomplete:
            # A damaged log does not take back what its voter vouched for: a fetch may be under way, and the voter
            # abstains until it has everything again.
            vouched = max(vouched, self._vouched.get(machine.id, 0))
        self._vouched[machine.id] = vouched
        self._no_vote_forgotten(machine, process, raft)
        if isinstance(raft.role, Leader):
            self._single_quorum_leader(epoch, machine.id)
            if seen.led_epoch != epoch:
                seen.led_epoch = epoch
                self._quorum_leader_has_everything(machine, epoch, log)
            if raft.high_watermark != seen.high_watermark:
                self._a_majority_has_it(machine, raft.high_watermark, quorum.voters.ids)
        if seen.high_watermark == raft.high_watermark and seen.log_end == log.log_end_offset:
            return
        if raft.high_watermark < seen.high_watermark:
            self._accuse(
                f"{machine.host}: the quorum's high watermark went from {seen.high_watermark} "
                f"to {raft.high_watermark}"
            )
        seen.high_watermark = raft.high_watermark
        # A follower counts too: its high watermark was committed in this epoch or an earlier one.
        self._ledger(_METADATA_KEY).show(epoch, raft.high_watermark)
        self._read_on(machine, _METADATA_KEY, seen, log, raft.high_watermark)

    def _nothing_vouched_for_is_lost(self, machine: Machine, log: Log) -> None:
        """Checks that a log still has, after a power failure, the records that its voter claimed to have on disk.

        A log that was found damaged is excepted: the node knows it, and takes no part until it has everything again.
        """
        if log.log_end_offset < self._vouched.get(machine.id, 0):
            self._accuse(
                f"{machine.host} comes back with metadata up to {log.log_end_offset}; it had vouched for "
                f"{self._vouched[machine.id]}"
            )

    def _quorum_leader_has_everything(self, machine: Machine, epoch: int, log: Log) -> None:
        committed_end = self._ledger(_METADATA_KEY).committed_before(epoch)
        if log.log_end_offset < committed_end:
            self._accuse(
                f"{machine.host} leads quorum epoch {epoch} with metadata up to {log.log_end_offset}; before it "
                f"{committed_end} was committed"
            )

    def _a_majority_has_it(self, machine: Machine, high_watermark: int, voters: Collection[int]) -> None:
        holders = sum(1 for voter in voters if self._vouched.get(voter, 0) >= high_watermark)
        if voters and 2 * holders <= len(voters):
            self._accuse(
                f"{machine.host} takes metadata up to {high_watermark} for committed; {holders} of {len(voters)} "
                "voters have it on disk"
            )

    def _single_quorum_leader(self, epoch: int, node_id: int) -> None:
        leader = self._quorum_leaders.setdefault(epoch, node_id)
        if leader != node_id:
            self._accuse(f"quorum epoch {epoch} is led by {leader} and by {node_id}")

    def _no_vote_forgotten(self, machine: Machine, process: Process, raft: RaftMachine) -> None:
        """A voter votes once in an epoch, also across a restart."""
        election = raft.election
        voted = election.voted.id if election.voted is not None else None
        known = self._elections.get(machine.id)
        now = (process.loop, election.epoch, voted)
        if known == now:
            return
        self._elections[machine.id] = now
        if known is None:
            return
        _, known_epoch, known_vote = known
        if election.epoch < known_epoch:
            self._accuse(f"{machine.host} went from quorum epoch {known_epoch} back to {election.epoch}")
        is_open = voted is not None or (known[0] is not process.loop and election.leader_id is None)
        if election.epoch == known_epoch and known_vote not in (None, voted) and is_open:
            self._accuse(
                f"{machine.host} voted for {known_vote} in epoch {election.epoch}, and now for {voted}"
            )

    # -- replicas --------------------------------------------------------------------------------------------

    def _check_replicas(
        self, machine: Machine, process: Process, by_name: Mapping[str, Mapping[int, Partition]]
    ) -> None:
        """Check the partitions that changed since the last check."""
        # Some ten million comparisons in a seed of ten minutes: attributes and no calls.
        looked_at = self._looked_at
        for hosted in by_name.values():
            for partition in hosted.values():
                seen = looked_at.get(partition)
                if seen is not None:
                    reader = partition.reader
                    log = reader.log
                    if (
                        log is not None
                        and log is seen.log
                        and log.log_end_offset == seen.log_end
                        and reader.high_watermark == seen.high_watermark
                    ):
                        leader = partition.leadership.machine
                        if leader is None or (
                            leader.leader_epoch == seen.led_epoch and leader.isr == seen.isr
                        ):
                            continue
                self._check_replica(machine, process, partition)

    def _check_replica(self, machine: Machine, process: Process, partition: Partition) -> None:
        log = partition.log
        if log is None:
            return
        key = self._key_of(machine, partition)
        seen = self._looked_at[partition] = self._seen_of(process, key)
        leader = partition.leader
        high_watermark = partition.high_watermark
        if leader is not None:
            if leader.leader_epoch != seen.led_epoch:
                self._began_to_lead(machine, partition, key, log, leader.leader_epoch)
                seen.led_epoch = leader.leader_epoch
            elif high_watermark < seen.high_watermark:
                self._accuse(
                    f"{machine.host} leads {partition.name} in epoch {leader.leader_epoch}: the high watermark "
                    f"went from {seen.high_watermark} to {high_watermark}"
                )
            if high_watermark != seen.high_watermark or leader.isr != seen.isr:
                seen.isr = leader.isr
                self._ledger(key).show(leader.leader_epoch, high_watermark)
                self._committed_is_in_sync(machine, partition, high_watermark)
        if high_watermark == seen.high_watermark and log.log_end_offset == seen.log_end and seen.log is log:
            return
        if high_watermark > log.log_end_offset:
            self._accuse(
                f"{machine.host}: {partition.name} ends at {log.log_end_offset}, below its high watermark"
            )
        seen.high_watermark = high_watermark
        if not partition.config.is_compacted:
            self._read_on(machine, key, seen, log, high_watermark)
        seen.log_end, seen.log = log.log_end_offset, log
        self._check_stable_offset(machine, partition, seen, log)

    # -- transactions ----------------------------------------------------------------------------------------

    def _check_stable_offset(self, machine: Machine, partition: Partition, seen: _Seen, log: Log) -> None:
        """The last stable offset equals what the committed batches imply, and a leader never lowers it."""
        stable = partition.last_stable_offset
        where = f"{machine.host}: {partition.name} is stable up to {stable}"
        if stable > seen.high_watermark:
            self._accuse(f"{where}, above its high watermark {seen.high_watermark}")
        leader_epoch = partition.leader.leader_epoch if partition.leader is not None else -1
        if leader_epoch >= 0 and leader_epoch == seen.stable_epoch and stable < seen.stable_offset:
            self._accuse(f"{where}; in the same leader epoch it was up to {seen.stable_offset}")
        seen.stable_epoch, seen.stable_offset = leader_epoch, stable
        if partition.config.is_compacted or seen.committed_end != seen.high_watermark:
            return
        expected = seen.transactions.stable_offset(seen.high_watermark)
        undecided = log.producers.first_unstable_offset
        if undecided is not None and (
            undecided < seen.transactions.start_offset or undecided in seen.transactions.cut.values()
        ):
            # Its first batches are deleted, and this replica has no marker of it: it lags, or power has failed.
            expected = log.log_start_offset
        if stable != expected and not expected < stable <= self._stable_with_hindsight(partition, seen, log):
            self._accuse(
                f"{where}; high watermark {seen.high_watermark}, open are {seen.transactions.described()}"
            )
        aborted = seen.transactions.aborted
        if len(aborted) != seen.aborted_seen:
            seen.aborted_seen = len(aborted)
            self._aborted_are_known(machine, partition, seen, log)

    def _stable_with_hindsight(self, partition: Partition, seen: _Seen, log: Log) -> int:
        """The largest stable offset of a replica that knew more than the high watermark with which it restarted.

        It has dropped transactions whose markers were committed; they stay decided.
        """
        committed_end = self._ledger(self._keys[partition]).committed_end
        transactions = deepcopy(seen.transactions)
        for header, raw in _batches(log, seen.committed_end, min(committed_end, log.log_end_offset)):
            if header.is_transactional:
                list(transactions.take(raw, header))
        return min(seen.high_watermark, transactions.stable_offset(seen.high_watermark))

    def _aborted_are_known(self, machine: Machine, partition: Partition, seen: _Seen, log: Log) -> None:
        """The transaction index holds the aborted transactions of the batches, on every replica."""
        end = seen.high_watermark
        known = {
            (each.producer_id, each.first_offset, each.last_offset)
            for each in log.aborted_between(log.log_start_offset, end)
            if each.last_offset < end
        }
        ledger = self._ledger(self._keys[partition])
        transactions = seen.transactions
        ledger.aborted.update(transactions.aborted)
        # A replica may have read the first batches of a transaction before they were deleted, or only later ones.
        limit = max(transactions.start_offset, log.log_start_offset)
        cut = {(producer_id, last) for producer_id, first, last in known | ledger.aborted if first < limit}

        def comparable(found: Iterable[Aborted]) -> set[Aborted]:
            return {(each[0], -1, each[2]) if (each[0], each[2]) in cut else each for each in found}

        left = [each for each in transactions.aborted if each[2] >= log.log_start_offset]
        required = comparable(
            each for each in left if transactions.last_batches[each[2]] >= log.log_start_offset
        )
        began_before = [each for each in ledger.aborted if each[1] < transactions.start_offset]
        listed = comparable(known)
        if not required <= listed <= comparable([*left, *began_before]):
            self._accuse(
                f"{machine.host}: {partition.name} up to {end} lacks the aborted transactions "
                f"{sorted(required - listed)} and has {sorted(listed - required)} instead (producer, first, last)"
            )

    def _began_to_lead(
        self, machine: Machine, partition: Partition, key: Key, log: Log, leader_epoch: int
    ) -> None:
        ledger = self._ledger(key)
        self._knows_its_role(machine, partition, ledger, leader_epoch)
        leader = ledger.leaders.setdefault(leader_epoch, machine.id)
        if leader != machine.id:
            self._accuse(f"epoch {leader_epoch} of {partition.name} is led by {leader} and by {machine.id}")
        committed_end = ledger.committed_before(leader_epoch)
        if log.log_end_offset < committed_end:
            self._accuse(
                f"{machine.host} leads {partition.name} from epoch {leader_epoch} on with a log that ends at "
                f"{log.log_end_offset}; before it {committed_end} was committed"
            )

    def _knows_its_role(
        self, machine: Machine, partition: Partition, ledger: _Ledger, leader_epoch: int
    ) -> None:
        """Note in which epochs a partition is decommissioned. One that was added again has a log of its own."""
        name, index = partition.name
        image = _image_of(machine)
        found = image.partition(name, index)
        if found is None or found.leader_epoch != leader_epoch:
            return
        if 0 < active_partitions(image.topic_config(name)) <= index:
            ledger.decommissioned.add(leader_epoch)
        if self._keys[partition] != self._new_key(machine, partition):
            self._accuse(
                f"{machine.host} leads {partition.name} with the log of a partition that was removed"
            )

    def _key_of(self, machine: Machine, partition: Partition) -> Key:
        key = self._keys.get(partition)
        if key is None:
            key = self._keys[partition] = self._new_key(machine, partition)
        return key

    def _new_key(self, machine: Machine, partition: Partition) -> Key:
        removed = removed_epochs(_image_of(machine).topic_config(partition.name.topic))
        return bytes(partition.topic_id), partition.index, removed.get(partition.index, -1)

    def _committed_is_in_sync(self, machine: Machine, partition: Partition, high_watermark: int) -> None:
        """Everything committed is in the log of every ISR member, of the leader's ISR and the controller's."""
        leader = partition.leader
        assert leader is not None
        newer = self._newer_isr(partition, leader)
        for broker_id in (*leader.isr, *(each for each in newer if each not in leader.isr)):
            replica = self._replica_of(broker_id, machine, partition)
            if (
                replica is not None
                and replica.log is not None
                and replica.log.log_end_offset < high_watermark
            ):
                self._accuse(
                    f"{machine.host} shows {partition.name} up to {high_watermark}; broker {broker_id} is in the ISR "
                    f"and ends at {replica.log.log_end_offset}"
                )

    def _newer_isr(self, partition: Partition, leader: PartitionLeader) -> tuple[int, ...]:
        """The ISR that the controller has committed in the same leader epoch, while the leader does not know it yet.

        The leader may be the first to know it: the controller responds to it before brokers replay the record.
        """
        found: tuple[int, ...] = ()
        found_epoch = leader.partition_epoch
        for machine in self._cluster.machines.values():
            if machine.node is None:
                continue
            image = machine.node.broker.image.partition(partition.name.topic, partition.index)
            if (
                image is not None
                and image.leader_epoch == leader.leader_epoch
                and image.partition_epoch > found_epoch
            ):
                found, found_epoch = image.isr, image.partition_epoch
        return found

    def _replica_of(self, broker_id: int, leader: Machine, partition: Partition) -> Partition | None:
        """The replica of another broker; None unless it runs in the incarnation that the leader knows."""
        other = self._cluster.machines[broker_id]
        if other is leader or other.node is None or leader.node is None:
            return None
        image = leader.node.broker.image.brokers.get(other.config.node_id)
        if image is None or image.is_fenced or other.node._lifecycle.broker_epoch != image.epoch:
            return None
        found, _ = other.node.broker.replicas.find((partition.name.topic, partition.index))
        # It may be of another partition with the same name.
        is_same = found is not None and self._key_of(other, found) == self._keys[partition]
        return found if is_same else None

    # -- contents --------------------------------------------------------------------------------------------

    def _read_on(self, machine: Machine, key: Key, seen: _Seen, log: Log, committed_end: int) -> None:
        """Compare this replica's new batches with those seen elsewhere."""
        ledger = self._ledger(key)
        end = log.log_end_offset
        if seen.log is not log:
            seen.committed_end = 0
            seen.batches.clear()
        elif end < seen.log_end:
            self._nothing_committed_is_cut(machine, key, ledger, seen, end)
            seen.committed_end = min(seen.committed_end, end)
        if seen.committed_end < seen.transactions.end_offset:
            seen.committed_end = 0
            seen.transactions = OpenTransactions()
            seen.aborted_seen = -1
        seen.log_end, seen.log = end, log
        # Uncommitted batches may have been replaced since they were read.
        offset = max(seen.committed_end, log.log_start_offset)
        if seen.transactions.end_offset == 0:
            seen.transactions.start_offset = offset
        seen.transactions.start_at(
            log.log_start_offset, has_read_all_before=seen.committed_end >= log.log_start_offset
        )
        # Records may be committed and deleted between two readings; a replica that restarts may still have them.
        if ledger.committed_end < log.log_start_offset <= committed_end:
            ledger.unseen.append(range(ledger.committed_end, log.log_start_offset))
            ledger.committed_end = log.log_start_offset
        try:
            for header, raw in _batches(log, offset, end):
                batch = _Batch(header.next_offset, header.leader_epoch, header.crc)
                self._is_of_this_partition(machine, key, ledger, header)
                self._log_matching(machine, key, ledger, header.base_offset, batch)
                seen.batches[header.base_offset] = batch
                if batch.next_offset <= committed_end:
                    self._committed_stays(machine, key, ledger, header.base_offset, batch)
                    seen.committed_end = batch.next_offset
                    if header.is_transactional:
                        for wrong in seen.transactions.take(raw, header):
                            self._accuse(f"{machine.host}: {self._name(key)}: {wrong}")
        except InvalidBatch as damage:
            self._accuse(
                f"{machine.host} serves {self._name(key)} with a batch after {offset} that is none: {damage}"
            )

    def _is_of_this_partition(self, machine: Machine, key: Key, ledger: _Ledger, header: BatchHeader) -> None:
        """A decommissioned partition takes no new records, and one that was added again has none of the one before."""
        epoch, where = header.leader_epoch, header.base_offset
        if epoch in ledger.decommissioned and not header.is_control:
            self._accuse(
                f"{machine.host}: {self._name(key)} took records in epoch {epoch} at {where}, decommissioned"
            )
        if epoch <= key[2]:
            self._accuse(
                f"{machine.host}: {self._name(key)} has a batch of a partition that was removed at {where}"
            )

    def _nothing_committed_is_cut(
        self, machine: Machine, key: Key, ledger: _Ledger, seen: _Seen, end: int
    ) -> None:
        """A truncation removes only batches that the leader does not have, and no committed one."""
        cut = [base for base, batch in seen.batches.items() if batch.next_offset > end]
        for base in cut:
            if seen.batches.pop(base) == ledger.committed.get(base):
                self._accuse(
                    f"{machine.host} cut {self._name(key)} to {end}, and with it the committed batch at {base}"
                )
                return

    def _log_matching(self, machine: Machine, key: Key, ledger: _Ledger, base: int, batch: _Batch) -> None:
        crc = ledger.crcs.setdefault((base, batch.epoch), batch.crc)
        if crc != batch.crc:
            self._accuse(
                f"{machine.host}: {self._name(key)} has another batch at offset {base} of epoch {batch.epoch} "
                "than some other replica"
            )

    def _committed_stays(self, machine: Machine, key: Key, ledger: _Ledger, base: int, batch: _Batch) -> None:
        known = ledger.committed.get(base)
        if known is None and base < ledger.committed_end and not ledger.is_unseen(base):
            self._accuse(f"{machine.host}: {self._name(key)} has no batch of its own at offset {base}")
        elif known is None:
            ledger.committed[base] = batch
            ledger.committed_end = max(ledger.committed_end, batch.next_offset)
        elif known != batch:
            self._accuse(
                f"{machine.host}: {self._name(key)} holds {batch} at offset {base}; committed was {known}"
            )

    # -- remembering -----------------------------------------------------------------------------------------

    def _seen_of(self, process: Process, key: Key) -> _Seen:
        found = self._seen.get((process.loop, key))
        if found is None:
            found = self._seen[process.loop, key] = _Seen()
        return found

    def _ledger(self, key: Key) -> _Ledger:
        found = self._ledgers.get(key)
        if found is None:
            found = self._ledgers[key] = _Ledger()
        return found

    def _name(self, key: Key) -> str:
        for machine in self._cluster.machines.values():
            if machine.node is not None:
                topic = machine.node.broker.image.topics_by_id.get(key[0])  # type: ignore[call-overload]
                if topic is not None:
                    return f"{topic.name}-{key[1]}"
        return "the metadata log" if key == _METADATA_KEY else key[0].hex()

    def check_all(self) -> None:
        """Check everything on every node, at the end."""
        for machine in self._cluster.machines.values():
            if machine.process is not None:
                self.after_turn(machine.process.loop)
                for difference in differences(machine):
                    self._accuse(difference)


def _image_of(machine: Machine) -> MetadataImage:
    """The metadata by which a broker opens its partitions."""
    assert machine.process is not None
    assert machine.process.node is not None
    image = machine.process.node._replicas.image
    assert image is not None
    return image


def _batches(log: Log, offset: int, end: int) -> Iterator[tuple[BatchHeader, memoryview]]:
    while offset < end:
        found = log.read(offset, _READ_BYTES, end)
        if found is None:
            return
        data, position = memoryview(bytearray(found.read())), 0
        for header in split_batches(data):
            yield header, data[position : position + header.size]
            position += header.size
            offset = header.next_offset
