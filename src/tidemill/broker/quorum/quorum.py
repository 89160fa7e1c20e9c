"""This node's place in the metadata quorum.

Every node has one. Controllers vote, other nodes only follow. All run the same machine (`raft/`), carried out by
`replica.py` over the log of `log.py`. The `QuorumListener` gets committed records in the order of the log, each once, and
changes of the leadership. At a start only the snapshot counts as committed, until the quorum confirms more.

This module starts the replica (formation.py finds the voters), passes it the requests of peers and clients and the active
controller's appends, writes snapshots, and stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial

from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.net.channel import Channels
from tidemill.broker.net.network import Address
from tidemill.broker.platform import Platform
from tidemill.broker.quorum import answers as quorum_answers
from tidemill.broker.quorum import formation
from tidemill.broker.quorum.log import METADATA_FOLDER, MetadataDamaged, MetadataLog
from tidemill.broker.quorum.peers import Peers
from tidemill.broker.quorum.replica import QuorumListener, Replica
from tidemill.broker.quorum.requests import Call, Waiting, WaitingCall, WaitingTask, event_of, leaders
from tidemill.broker.quorum.state import QuorumStateFile
from tidemill.config import BrokerConfig
from tidemill.errors import ApiError, ErrorCode, StorageError
from tidemill.protocol import api as apis
from tidemill.protocol.api import data, quorum
from tidemill.protocol.api.brokers import Listener
from tidemill.protocol.schema import Request, Response
from tidemill.raft import effects as do
from tidemill.raft import events as on
from tidemill.raft.core import RaftMachine
from tidemill.raft.log import SnapshotKey
from tidemill.raft.state import QuorumConfig
from tidemill.raft.voters import KRAFT_VERSION_MAX, ReplicaKey, Voter, VoterEndpoint, VoterSet
from tidemill.types import uuid_text

__all__ = ["Quorum", "QuorumListener"]

logger = logging.getLogger(__name__)

_ASK_LEADER_TIMEOUT_S = 15.0
_RESIGN_TIMEOUT_S = 1.0
_FOREIGN_IDS_TOLD_MAX = 20
_CLUSTER_ID_SHOWN = 64


class Quorum:
    def __init__(
        self,
        config: BrokerConfig,
        platform: Platform,
        syncer: Syncer,
        channels: Channels,
        listener: QuorumListener,
        *,
        directory_id: bytes,
        cluster_id: str | None,
        endpoints: Sequence[Listener],
        on_fatal: Callable[[str], None],
    ) -> None:
        self._config = config
        self._platform = platform
        self._syncer = syncer
        self._channels = channels
        self._listener = listener
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self.own = ReplicaKey(config.node_id, directory_id)
        self.cluster_id = cluster_id
        self._endpoints = tuple(VoterEndpoint(each.name, each.host, each.port) for each in endpoints)
        self._folder = f"{config.storage.metadata_log_dir}/{METADATA_FOLDER}"
        self._peers = Peers(
            channels, lambda: self.voters, self.own.id, self._endpoints, config.quorum.request_timeout_ms
        )
        self._log: MetadataLog | None = None
        # None until the voters are known.
        self._replica: Replica | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[Waiting, None] = {}
        self._foreign_ids: set[str] = set()
        self._snapshot_written: asyncio.Future[None] | None = None
        self._has_failed = False

    # -- what others may know --------------------------------------------------------------------------------

    @property
    def log(self) -> MetadataLog:
        assert self._log is not None, "not started"
        return self._log

    @property
    def is_open(self) -> bool:
        """Whether the log was read, and with it the voters."""
        return self._log is not None

    @property
    def machine(self) -> RaftMachine | None:
        """The machine, for checks of invariants; None until the voters are known."""
        return self._replica.machine if self._replica is not None else None

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.voters

    @property
    def epoch(self) -> int:
        return self._replica.machine.epoch if self._replica is not None else 0

    @property
    def leader_id(self) -> int | None:
        return self._replica.machine.leader_id if self._replica is not None else None

    @property
    def is_active(self) -> bool:
        """Whether `append` is possible."""
        return self._replica is not None and self._replica.is_active

    @property
    def is_waiting_for_space(self) -> bool:
        """Whether a full disk keeps this node from taking part."""
        return self._replica is not None and self._replica.is_waiting_for_space

    @property
    def high_watermark(self) -> int:
        return self._replica.machine.high_watermark if self._replica is not None else 0

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def records_since_snapshot(self) -> int:
        """Committed, control records among them."""
        if self._replica is None:
            return 0
        snapshot = self.log.latest_snapshot
        return self._replica.handed_over - (snapshot.end_offset if snapshot is not None else 0)

    @property
    def bytes_since_snapshot(self) -> int:
        return self._replica.bytes_since_snapshot if self._replica is not None else 0

    @property
    def known_ms(self) -> int:
        """The last time up to which every committed record is known to have been handed over."""
        return self._replica.known_ms if self._replica is not None else -1

    def leader_address(self) -> Address | None:
        leader_id = self.leader_id
        return None if leader_id is None else self._peers.address_of(leader_id)

    def voter_addresses(self) -> dict[int, Address]:
        addresses = {node_id: self._peers.address_of(node_id) for node_id in self.voters.ids}
        return {node_id: address for node_id, address in addresses.items() if address is not None}

    def set_cluster_id(self, cluster_id: str) -> None:
        """Known from now on: requests that name another are refused."""
        self.cluster_id = cluster_id
        if self._replica is not None:
            self._replica.machine.set_cluster_id(cluster_id)

    # -- starting --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read what is on disk, hand over the snapshot, and take part once the voters are known."""
        self._log = self._open_log()
        self._check_own_directory()
        snapshot = self._log.latest_snapshot
        if snapshot is not None:
            self._listener.restart_from(
                self._log.snapshots.values(snapshot), snapshot.end_offset, snapshot.epoch
            )
        if self._log.has_voters_record or self._config.quorum.voters:
            self._take_part()
        elif self._is_alone:
            self._begin()
        else:
            self._spawn(self._find())

    def _open_log(self) -> MetadataLog:
        files = self._platform.files
        open_log = partial(
            MetadataLog, files, self._folder, self._static_voters(), self._platform.clock.wall_ms()
        )
        try:
            log = open_log()
        except MetadataDamaged as error:
            if self._is_alone:
                raise
            logger.error(
                "%s. The log is set aside and fetched from the other nodes; this node does not vote until it is complete",
                error,
            )
            MetadataLog.start_over(files, self._folder)
            log = open_log()
        if log.is_empty and self.cluster_id is not None and not self._is_alone and not log.is_incomplete:
            logger.warning(
                "this node belongs to cluster %s, but its metadata log is gone; this node does not vote until it has "
                "fetched it from the other nodes",
                self.cluster_id,
            )
            log.mark_incomplete()
        return log

    def _check_own_directory(self) -> None:
        """Refuse a lone node that is not the voter of its own log: no election could ever succeed."""
        voter = self.voters.get(self.own.id)
        if voter is None or voter.key.matches(self.own) or not self._is_alone:
            return
        data_dir, found = self._config.storage.metadata_log_dir, uuid_text(self.own.directory_id)
        raise StorageError(
            f"{data_dir}/meta.properties is missing or not of this directory: directory.id is {found}, while the "
            f"metadata in {self._folder} is of node {self.own.id} with directory.id={uuid_text(voter.key.directory_id)}. "
            "Put the right file back"
        )

    def _static_voters(self) -> VoterSet:
        """Their addresses are of the first controller listener: what a client sees of a voter has its name."""
        names = (*self._config.network.controller_listener_names, *(each.name for each in self._endpoints))
        return VoterSet(
            Voter(ReplicaKey(voter.id), (VoterEndpoint(names[0], voter.host, voter.port),))
            for voter in self._config.quorum.voters
        )

    @property
    def _is_alone(self) -> bool:
        """Whether the configuration knows of no other node that could have the metadata."""
        settings = self._config.quorum
        if not self._config.is_controller or any(voter.id != self.own.id for voter in settings.voters):
            return False
        return all(Address(*server) in self._own_addresses() for server in settings.bootstrap_servers)

    def _own_addresses(self) -> list[Address]:
        return [Address(each.host, each.port) for each in self._endpoints]

    async def _find(self) -> None:
        found = await formation.find_quorum(
            self._channels,
            [Address(*server) for server in self._config.quorum.bootstrap_servers],
            self.own,
            self._own_addresses(),
            may_begin=self._config.is_controller and not self.log.is_incomplete,
        )
        if found is None:
            self._begin()
            return
        if self.log.is_empty and self.own in found.keys:
            # It was a voter with this directory, and has nothing of what it may have helped to commit.
            self.log.mark_incomplete()
        self.log.set_bootstrap(found)
        self._take_part()

    def _begin(self) -> None:
        """A quorum of this node alone, which other controllers can join. What the log has already, stays."""
        log, wall_ms = self.log, self._platform.clock.wall_ms()
        voters = VoterSet([Voter(self.own, self._endpoints)])
        version = quorum.KRaftVersionRecord(k_raft_version=KRAFT_VERSION_MAX)
        try:
            log.append_control([version, voters.to_record()], log.last_epoch, wall_ms)
            log.sync(wall_ms)
        except OSError as error:
            raise StorageError(f"cannot write the metadata log: {error.strerror or error}") from error
        self._take_part()

    def _take_part(self) -> None:
        settings, log = self._config.quorum, self.log
        state_file = QuorumStateFile(self._platform.files, self._folder)
        election = state_file.read()
        if election.epoch < log.last_epoch:
            # Written by a version that had no quorum.
            election = do.ElectionState(log.last_epoch)
        config = QuorumConfig(
            election_timeout_ms=settings.election_timeout_ms,
            election_backoff_ms_max=settings.election_backoff_max_ms,
            fetch_timeout_ms=settings.fetch_timeout_ms,
            request_timeout_ms=settings.request_timeout_ms,
            retry_backoff_ms=settings.retry_backoff_ms,
            fetch_max_bytes=settings.fetch_max_bytes,
            fetch_snapshot_max_bytes=settings.fetch_snapshot_max_bytes,
        )
        machine = RaftMachine(
            self.own,
            log,
            election,
            config,
            self._platform.rng.randrange,
            self.cluster_id,
            self._platform.clock.steady_ms(),
            is_incomplete=log.is_incomplete,
        )
        self._replica = Replica(
            machine,
            log,
            state_file,
            self._peers,
            self._syncer,
            self._platform.clock,
            self._listener,
            self._fail,
        )
        self._replica.start()
        if self._config.is_controller and not settings.voters:
            self._spawn(formation.become_voter(self, self.own, self._endpoints))

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(coroutine)
        task.add_done_callback(self._task_done)
        self._tasks.append(task)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a task of the metadata quorum failed; this node stops", exc_info=error)
            self._fail(str(error))

    # -- deciding --------------------------------------------------------------------------------------------

    def append(self, values: Sequence[bytes]) -> int:
        """Writes one batch and returns the log's end offset. The listener gets it when it is committed."""
        if self._replica is None or not self._replica.is_active:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        try:
            return self._replica.append(values)
        except OSError as error:
            message = f"cannot write the metadata log: {error.strerror or error}"
            logger.error("%s", message)
            if len(self.voters) > 1:
                self._replica.give_way()
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error

    # -- being asked -----------------------------------------------------------------------------------------

    async def answer(self, request: Request, *, is_proven: bool = True) -> Response:
        """Answer requests of peers (votes, epochs, snapshots) and of clients (DescribeQuorum, changes of voters).

        `is_proven` says whether the connection is that of the replica which the request names.
        """
        waiting = WaitingTask(self)
        self._ask(waiting, request, is_proven=is_proven)
        try:
            return await waiting.response
        finally:
            self.forget(waiting)

    def fetch(self, call: Call, request: data.FetchRequest, *, is_proven: bool) -> None:
        """A fetch of the metadata partition. The caller has taken the place for the reply; this fills it, perhaps later."""
        waiting = WaitingCall(self, call)
        call.connection.close_callbacks.append(waiting.abandon)
        self._ask(waiting, request, is_proven=is_proven)

    def _ask(self, waiting: Waiting, request: Request, *, is_proven: bool) -> None:
        self._note_foreigner(request)
        if self._replica is None or self._has_failed or self.is_waiting_for_space:
            waiting.answered(self._answer_without_quorum(request))
            return
        self._waiting[waiting] = None
        self._replica.step(event_of(waiting, request, is_proven=is_proven))
        if isinstance(request, quorum.BeginQuorumEpochRequest) and self.leader_id in leaders(request):
            # Only after the machine has accepted it: an arbitrary request must not change the leader's address.
            assert self.leader_id is not None
            self._peers.learn(self.leader_id, request.leader_endpoints)

    def _answer_without_quorum(self, request: Request) -> Response:
        if isinstance(request, quorum.DescribeQuorumRequest):
            reason = "has no space on its disk" if self.is_waiting_for_space else "has not found a quorum yet"
            return quorum_answers.description_without_quorum(self.own, self._endpoints, reason)
        return quorum_answers.refusal_without_quorum(request)

    def complete(self, waiting: Waiting, response: Response) -> None:
        """Fill in what the machine does not know."""
        self._waiting.pop(waiting, None)
        if self._replica is None:
            return
        if isinstance(response, quorum.DescribeQuorumResponse):
            ahead_ms = self._platform.clock.wall_ms() - self._replica.steady_ms()
            quorum_answers.complete_description(response, self.voters, ahead_ms)
        else:
            quorum_answers.name_leader(response, self.leader_id, self.leader_address())

    def forget(self, waiting: Waiting) -> None:
        if self._waiting.pop(waiting, 0) is None and self._replica is not None:
            self._replica.step(on.RequestAbandoned(waiting))

    def _note_foreigner(self, request: Request) -> None:
        """The machine refuses it; say so once for each cluster, and of so many clusters as there may really be.

        The id comes from a request: it may have any length, and be another one in every request.
        """
        theirs: str | None = getattr(request, "cluster_id", None)
        if theirs is None or self.cluster_id is None or theirs == self.cluster_id:
            return
        theirs = theirs[:_CLUSTER_ID_SHOWN]
        if theirs in self._foreign_ids or len(self._foreign_ids) >= _FOREIGN_IDS_TOLD_MAX:
            return
        self._foreign_ids.add(theirs)
        name = apis.API_NAMES[request.api_key]
        logger.warning(
            "refusing %s of a node of cluster %r: this is cluster %s", name, theirs, self.cluster_id
        )

    async def ask_leader(self, request: Request) -> Response:
        if self.leader_id == self.own.id:
            return await self.answer(request)
        address = self.leader_address()
        if address is None:
            raise TimeoutError("no leader of the metadata quorum is known")
        channel = self._channels.to(address, "voters")
        response_type = apis.RESPONSES[request.api_key]
        return await channel.request(request, response_type, timeout_s=_ASK_LEADER_TIMEOUT_S)

    # -- snapshots -------------------------------------------------------------------------------------------

    async def write_snapshot(self, values: Iterable[bytes], end_offset: int) -> None:
        """Writes a snapshot of the committed state before `end_offset`, where a batch ends. Reads `values` in a thread.

        Drops the part of the log that the snapshots make superfluous.
        """
        log, run_blocking = self.log, self._platform.run_blocking
        latest = log.latest_snapshot
        if self._replica is None or self._snapshot_written is not None:
            return
        if latest is not None and end_offset <= latest.end_offset:
            return
        assert end_offset <= self._replica.handed_over, "only what is committed"
        key = SnapshotKey(end_offset, log.epoch_before(end_offset))
        bytes_before = self._replica.bytes_since_snapshot
        written = self._snapshot_written = self._loop.create_future()
        try:
            write = partial(
                log.snapshots.write, key, values, log.snapshot_voters(end_offset), log.last_timestamp
            )
            await run_blocking(write)
            if log.is_closed:
                return
            doomed = log.snapshot_written(key, self._platform.clock.wall_ms())
            self._replica.bytes_since_snapshot = max(0, self._replica.bytes_since_snapshot - bytes_before)
            for path in doomed:
                await run_blocking(partial(self._platform.files.remove, path))
        except OSError as error:
            raise StorageError(f"cannot write a snapshot: {error.strerror or error}") from error
        finally:
            self._snapshot_written = None
            written.set_result(None)

    # -- the end ---------------------------------------------------------------------------------------------

    async def resign(self) -> None:
        """Before a shutdown: let another voter lead at once, if there is one."""
        replica = self._replica
        if replica is None or not replica.machine.is_leader or len(self.voters) < 2:
            return
        try:
            async with asyncio.timeout(_RESIGN_TIMEOUT_S):
                await replica.resign()
        except TimeoutError:
            logger.info(
                "not every voter has confirmed EndQuorumEpoch; the others elect a leader when their fetches time out"
            )

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._dismiss()
            self._on_fatal(reason)

    def _dismiss(self) -> None:
        for task in self._tasks:
            task.cancel()
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            each.dismiss()

    async def close(self) -> bool:
        """Whether everything is on disk, as after a clean shutdown."""
        self._peers.is_closed = True
        if self._replica is not None:
            self._replica.stop()
        self._dismiss()
        if self._snapshot_written is not None:
            await self._snapshot_written
        if self._log is None:
            return False
        if self._has_failed:
            self._log.release()
            return False
        await self._syncer.drain()
        try:
            self._log.close()
        except OSError as error:
            logger.error("cannot close the metadata log: %s", error)
            return False
        return True
