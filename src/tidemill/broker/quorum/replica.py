"""Carries out the effects of the quorum's machine: on the log, the disk, the peers and the listener.

Events are handled one at a time. The machine is stepped, its effects are carried out in their order, and the listener
gets the results. Then comes the next event. Events that arrive meanwhile wait in a queue. A vote and an installed
snapshot are on disk before the next effect; the log is synced by the `Syncer`, whose completion is an event. The
machine's time is the loop's, which cannot jump (failure 28).

The active controller's records are written *before* the machine gets the event: a full disk is then an error of the
caller, and the machine's state stays as it was. A follower that cannot write what it fetched waits a while and fetches
again. A vote or an epoch for which there is no space waits, and with it every later effect and event. To its peers the
replica is slow; the broker beside it keeps serving what it has. Anything else that fails on the disk, or a bug in the
machine, is the end: half of an event's effects is no state to go on from.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from tidemill.broker.clock import Clock
from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.quorum.log import MetadataLog
from tidemill.broker.quorum.peers import PeerResponse, Peers
from tidemill.broker.quorum.state import QuorumStateFile
from tidemill.errors import ErrorCode, ProtocolError, StorageError
from tidemill.log.sync import DiskFull
from tidemill.protocol.api import data, quorum
from tidemill.protocol.records import InvalidBatch
from tidemill.protocol.schema import Response
from tidemill.raft import effects as do
from tidemill.raft import events as on
from tidemill.raft import messages
from tidemill.raft.core import RaftMachine
from tidemill.raft.log import SnapshotKey
from tidemill.raft.requests import Sent
from tidemill.raft.roles import Resigned

logger = logging.getLogger(__name__)

_HANDED_OVER_AT_ONCE = 1_000
_DISK_FULL_PAUSE_S = 1.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Effects that leave everything as it was when they find no space.
_REPEATABLE = (do.PersistQuorumState, do.AppendControl, do.AppendToSnapshot)


class QuorumListener(Protocol):
    def restart_from(self, records: Iterable[bytes], end_offset: int, epoch: int) -> None:
        """A snapshot: what was known before is void."""

    def committed(self, records: Sequence[tuple[int, bytes]], end_offset: int) -> None:
        """Offsets and values, in order; everything before `end_offset` has now been handed over."""

    def activated(self, epoch: int) -> None:
        """This node leads, and has received everything that was committed before."""

    def resigned(self, epoch: int) -> None:
        """This node leads no longer; records that are not committed yet may be lost."""

    def leader_changed(self, epoch: int, leader_id: int | None) -> None: ...


class Asker(Protocol):
    """The token of a request that waits for the machine's answer."""

    def answered(self, response: Response) -> None: ...


class Replica:
    def __init__(
        self,
        machine: RaftMachine,
        log: MetadataLog,
        state_file: QuorumStateFile,
        peers: Peers,
        syncer: Syncer,
        clock: Clock,
        listener: QuorumListener,
        on_failure: Callable[[str], None],
    ) -> None:
        self.machine = machine
        self._log = log
        self._state_file = state_file
        self._peers = peers
        self._syncer = syncer
        self._clock = clock
        self.steady_ms = clock.steady_ms
        self._listener = listener
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        self._events: deque[on.Event] = deque()
        self._notices: deque[Callable[[], None]] = deque()
        # Of the last event, what is not carried out yet; between two turns of the loop only while the disk is full.
        self._effects: deque[do.Effect] = deque()
        self._is_running = self._is_carrying_out = self._is_stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms = 0
        snapshot = log.latest_snapshot
        # Everything before this offset was handed to the listener.
        self.handed_over = snapshot.end_offset if snapshot is not None else 0
        self.bytes_since_snapshot = 0
        self._active_epoch: int | None = None
        self._could_not_append = False
        self._resignation: asyncio.Future[None] | None = None
        self._refused_by: set[int] = set()
        # When a fetch was sent, and the high watermark of its answer: once that is handed over, everything committed
        # before the fetch was sent is known.
        self._unconfirmed: tuple[int, int] | None = None
        self._fetch_confirmed_ms = -1

    @property
    def is_active(self) -> bool:
        return self.machine.is_active_leader and not self._is_stopped

    @property
    def known_ms(self) -> int:
        """The last time up to which every committed record is known to have been handed over."""
        if self.is_active:
            return self.machine.majority_confirmed_ms(self.steady_ms())
        return self._fetch_confirmed_ms

    @property
    def is_waiting_for_space(self) -> bool:
        """Whether the machine's state is not on disk yet; until it is, no other node sees it."""
        return bool(self._effects) and not self._is_carrying_out

    def start(self) -> None:
        leader_id = self.machine.leader_id
        if leader_id is not None:
            self._notices.append(partial(self._listener.leader_changed, self.machine.epoch, leader_id))
        self.step(on.TimerExpired())

    def stop(self) -> None:
        """Ends everything: no event is handled and no listener is called after this."""
        self._is_stopped = True
        self._arm()
        self._end_resignation()

    # -- stepping --------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        is_idle = self._is_stopped or self.is_waiting_for_space
        deadline_ms = None if is_idle else self.machine.deadline_ms
        if self._timer is not None:
            if deadline_ms == self._armed_ms:
                return
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._armed_ms = deadline_ms
            # Never at once: a machine that wants to be woken again and again must not stop the loop.
            delay_ms = max(deadline_ms - self.steady_ms(), 1)
            self._timer = self._loop.call_later(delay_ms / 1000, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.step(on.TimerExpired())

    def step(self, event: on.Event) -> None:
        if self._is_stopped:
            return
        self._events.append(event)
        if not self._is_carrying_out:
            self._run()

    def _run(self) -> None:
        if self._is_running:
            return
        self._is_running = True
        try:
            while not self._is_stopped:
                if self._notices:
                    self._notices.popleft()()
                elif self._events and not self.is_waiting_for_space:
                    self._perform(self._events.popleft())
                else:
                    break
        except Exception as error:
            self._fail(error)
        finally:
            self._is_running = False
        self._arm()

    def _perform(self, event: on.Event) -> None:
        self._effects.extend(self.machine.step(event, self.steady_ms()))
        self._carry_out_effects()
        role = self.machine.role
        if not (isinstance(role, Resigned) and role.unacknowledged):
            self._end_resignation()

    def _carry_out_effects(self) -> None:
        """All of them, or up to one for which the disk has no space."""
        self._is_carrying_out = True
        try:
            while self._effects:
                self._carry_out(self._effects[0])
                self._effects.popleft()
        except OSError as error:
            if error.errno not in _DISK_FULL or not isinstance(self._effects[0], _REPEATABLE):
                raise
            logger.error(
                "the metadata quorum waits for space on the disk of __cluster_metadata-0: %s",
                error.strerror or error,
            )
            self._loop.call_later(_DISK_FULL_PAUSE_S, self._try_again)
        finally:
            self._is_carrying_out = False

    def _try_again(self) -> None:
        if self._is_stopped:
            return
        try:
            self._carry_out_effects()
        except Exception as error:
            self._fail(error)
            return
        self._run()

    def _end_resignation(self) -> None:
        waiter, self._resignation = self._resignation, None
        # A caller that stopped waiting has cancelled it, and may not have run since.
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, OSError):
            reason = f"cannot write the metadata log: {error.strerror or error}"
        elif isinstance(error, StorageError):
            reason = str(error)
        else:
            logger.error("a step of the metadata quorum failed; this node stops", exc_info=error)
            reason = f"the metadata quorum failed: {error!r}"
        self.stop()
        if self._active_epoch is not None:
            self._resign(self._active_epoch)
        self._on_failure(reason)

    def append(self, values: Sequence[bytes]) -> int:
        """As the active leader; an `OSError` leaves everything as it was. No listener is called before this returns."""
        if self.is_waiting_for_space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        epoch = self.machine.epoch
        self._log.append_values(values, epoch, self._clock.wall_ms())
        end_offset = self._log.log_end_offset
        try:
            self._perform(on.AppendRequested(None, epoch, None, len(values)))
        except Exception as error:
            self._fail(error)
            raise
        self._arm()
        if not self._is_running and (self._notices or self._events):
            self._loop.call_soon(self._run)
        return end_offset

    def give_way(self) -> None:
        """Resign as a leader that cannot write. Only another controller can take this broker out of an ISR."""
        if not self.is_waiting_for_space:
            self.step(on.ResignRequested())

    async def resign(self) -> None:
        """Give the leadership away, and see to it that the others know, while they can be reached."""
        self._resignation = self._loop.create_future()
        waiter = self._resignation
        self.step(on.ResignRequested())
        await waiter

    # -- effects ---------------------------------------------------------------------------------------------

    def _carry_out(self, effect: do.Effect) -> None:
        match effect:
            case do.PersistQuorumState(state):
                self._state_file.write(state)
            case (
                do.SendVote()
                | do.SendFetch()
                | do.SendFetchSnapshot()
                | do.SendBeginQuorumEpoch()
                | do.SendEndQuorumEpoch()
            ):
                failed = partial(self.step, on.RequestFailed(effect.number))
                self._peers.send(effect, partial(self._answered, effect, self.steady_ms()), failed)
            case do.Answer() | do.AnswerFetch() | do.AnswerFetchSnapshot():
                self._answer(effect)
            case do.SyncLog(number):
                self._sync(number)
            case do.RejectAppend():
                raise AssertionError("`append` is for the active leader")
            case do.AppendToLog() | do.AppendControl() | do.AppendFetched() | do.TruncateLog():
                self._change_log(effect)
            case do.AppendToSnapshot() | do.InstallSnapshot() | do.CompleteLog():
                self._replace_log(effect)
            case _:
                self._notify(effect)

    def _change_log(
        self, effect: do.AppendToLog | do.AppendControl | do.AppendFetched | do.TruncateLog
    ) -> None:
        log = self._log
        match effect:
            case do.AppendToLog(_, _, base_offset, _, count):
                assert log.log_end_offset == base_offset + count, "`append` has written it"
            case do.AppendControl(epoch, base_offset, record):
                assert log.log_end_offset == base_offset, "the machine knows where the log ends"
                log.append_control([record], epoch, self._clock.wall_ms())
            case do.AppendFetched(_, records):
                try:
                    log.append_fetched(records, self._clock.wall_ms())
                except OSError as error:
                    # The machine looks at the log again after the sync that follows, and fetches what is missing.
                    logger.error("cannot write the metadata log, trying again: %s", error.strerror or error)
                    self._could_not_append = True
            case do.TruncateLog(end_offset):
                log.truncate(end_offset)

    def _replace_log(self, effect: do.AppendToSnapshot | do.InstallSnapshot | do.CompleteLog) -> None:
        log = self._log
        match effect:
            case do.AppendToSnapshot(snapshot, position, content):
                log.snapshots.receive(snapshot, position, content)
            case do.InstallSnapshot(snapshot):
                log.install(snapshot, self._clock.wall_ms())
                self._notices.append(partial(self._restart_listener, snapshot))
            case do.CompleteLog():
                log.completed()
                logger.info("the metadata log is complete again, up to offset %d", log.log_end_offset)

    def _sync(self, number: int) -> None:
        if self._could_not_append:
            self._could_not_append = False
            self._loop.call_later(_DISK_FULL_PAUSE_S, self._sync, number)
        elif not self._is_stopped:
            self._syncer.sync(self._log, partial(self._synced, number))

    def _synced(self, number: int, error: OSError | None) -> None:
        if self._is_stopped:
            return
        if isinstance(error, DiskFull):
            self._loop.call_later(_DISK_FULL_PAUSE_S, self._sync, number)
            return
        if error is not None:
            self._fail(StorageError(f"cannot sync the metadata log: {error.strerror or error}"))
            return
        self.step(on.LogSynced(number, self._log.synced_end_offset))

    # -- the listener ----------------------------------------------------------------------------------------

    def _notify(self, effect: do.Effect) -> None:
        notice: Callable[[], None]
        match effect:
            case do.AdvanceHighWatermark(offset):
                notice = partial(self._hand_over, offset)
            case do.BecomeLeader(epoch, _):
                notice = partial(self._listener.leader_changed, epoch, self.machine.own.id)
            case do.FollowLeader(epoch, leader_id):
                notice = partial(self._listener.leader_changed, epoch, leader_id)
            case do.ActivateLeader(epoch):
                notice = partial(self._activate, epoch)
            case do.ResignLeadership(epoch):
                notice = partial(self._resign, epoch)
            case _:
                raise AssertionError(effect)
        self._notices.append(notice)

    def _hand_over(self, offset: int) -> None:
        gathered: list[tuple[int, bytes]] = []
        for end_offset, values in self._log.records(self.handed_over, offset):
            gathered += values
            self.bytes_since_snapshot += sum(len(value) for _, value in values)
            self.handed_over = end_offset
            if end_offset >= offset or len(gathered) >= _HANDED_OVER_AT_ONCE:
                self._listener.committed(gathered, end_offset)
                gathered = []
        self._confirm()

    def _restart_listener(self, snapshot: SnapshotKey) -> None:
        self._listener.restart_from(self._log.snapshots.values(snapshot), snapshot.end_offset, snapshot.epoch)
        self.handed_over, self.bytes_since_snapshot = snapshot.end_offset, 0

    def _activate(self, epoch: int) -> None:
        self._active_epoch = epoch
        self._listener.activated(epoch)

    def _resign(self, epoch: int) -> None:
        if self._active_epoch == epoch:
            self._active_epoch = None
            self._listener.resigned(epoch)

    # -- answers to peers and of peers -----------------------------------------------------------------------

    def _answer(self, effect: do.Answer | do.AnswerFetch | do.AnswerFetchSnapshot) -> None:
        match effect:
            case do.AnswerFetch(response=response, offset=offset, max_bytes=max_bytes):
                part = messages.fetch_response_part(response)
                assert part is not None
                part.records = self._log.read(offset, max_bytes)
            case do.AnswerFetchSnapshot(response=piece, snapshot=key, position=position, max_bytes=max_bytes):
                snapshot_part = messages.snapshot_response_part(piece)
                assert snapshot_part is not None
                snapshot_part.size = self._log.snapshot_size(key) or 0
                snapshot_part.unaligned_records = self._log.snapshots.read(key, position, max_bytes)
        asker: Asker = effect.token  # type: ignore[assignment]
        asker.answered(effect.response)

    def _answered(self, sent: Sent, sent_ms: int, response: PeerResponse) -> None:
        if self._is_stopped:
            return
        if response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID and sent.to not in self._refused_by:
            self._refused_by.add(sent.to)
            logger.error(
                "node %d belongs to another cluster than %s: check its data directory and its addresses",
                sent.to,
                self.machine.cluster_id,
            )
        try:
            event = self._event_of(sent, response)
        except (InvalidBatch, ProtocolError) as error:
            logger.error("node %d sent metadata that is damaged: %s", sent.to, error)
            event = on.RequestFailed(sent.number)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                self._fail(error)
                return
            logger.error(
                "cannot write a fetched snapshot of the metadata, trying again: %s", error.strerror or error
            )
            self._loop.call_later(_DISK_FULL_PAUSE_S, self.step, on.RequestFailed(sent.number))
            return
        self.step(event)
        if isinstance(response, data.FetchResponse) and not response.error_code:
            part = messages.fetch_response_part(response)
            if part is not None and not part.error_code and part.high_watermark >= 0:
                self._unconfirmed = self._unconfirmed or (sent_ms, part.high_watermark)
                self._confirm()

    def _confirm(self) -> None:
        if self._unconfirmed is not None and self._unconfirmed[1] <= self.handed_over:
            self._fetch_confirmed_ms = max(self._fetch_confirmed_ms, self._unconfirmed[0])
            self._unconfirmed = None

    def _event_of(self, sent: Sent, response: PeerResponse) -> on.Event:
        number = sent.number
        match response:
            case quorum.VoteResponse():
                return on.VoteAnswered(number, response)
            case quorum.BeginQuorumEpochResponse():
                return on.BeginQuorumEpochAnswered(number, response)
            case quorum.EndQuorumEpochResponse():
                return on.EndQuorumEpochAnswered(number, response)
            case quorum.FetchSnapshotResponse():
                return self._snapshot_event(number, response)
            case data.FetchResponse():
                assert isinstance(sent, do.SendFetch)
                self._check_fetched(sent, response)
                return on.FetchAnswered(number, response)

    def _check_fetched(self, sent: do.SendFetch, response: data.FetchResponse) -> None:
        asked, part = messages.fetch_request_part(sent.request), messages.fetch_response_part(response)
        if asked is None or part is None or not part.records:
            return
        # Until now the bytes are the connection's.
        part.records = bytes(part.records)
        if asked.fetch_offset == self._log.log_end_offset:
            self._log.check_fetched(
                memoryview(part.records), asked.fetch_offset, part.current_leader.leader_epoch
            )

    def _snapshot_event(self, number: int, response: quorum.FetchSnapshotResponse) -> on.Event:
        """With the last piece the snapshot must be whole; otherwise it is fetched again from its beginning."""
        part = messages.snapshot_response_part(response)
        if part is None or part.error_code:
            return on.FetchSnapshotAnswered(number, response)
        part.unaligned_records = bytes(part.unaligned_records)
        if part.position + len(part.unaligned_records) >= part.size:
            key = SnapshotKey(part.snapshot_id.end_offset, part.snapshot_id.epoch)
            try:
                self._log.snapshots.receive(key, part.position, part.unaligned_records)
                self._log.snapshots.check_received(key)
            except StorageError as error:
                logger.error("a fetched snapshot of the metadata is damaged: %s", error)
                return on.SnapshotFoundDamaged(number)
        return on.FetchSnapshotAnswered(number, response)
