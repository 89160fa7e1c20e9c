"""The commands of the quorum's transcripts, over the simulated quorum with a quiet network (1 ms each way) and disk.

    nodes 3 [observers=1]     start nodes 1, 2, 3 as voters (and 4 as an observer); fetch=1: one record a fetch
    timeout 1                 node 1's election or fetch timeout is over now
    elect 1                   the same, and then as long as it takes until it serves
    advance 2s | 100ms        let time pass; `until-leads 3`: just until 3 is elected
    partition 1|2,3           cut these groups off from each other; `heal` undoes it
    slow-disk 1s              from now on, how long a sync takes
    crash 1, restart 1        unsynced data is lost
    append 1 x y              give records to node 1; `resign 1`; `snapshot 1`; `add-voter 1 4`; `remove-voter 1 3`
    status, logs              the state of every node

A line of output is an action of a node, with the time since the command. Successful fetches are not shown.
"""

from __future__ import annotations

from tests.scenarios.transcripts import Command
from tests.unit.raft.sim_log import control_value, decode, replica, voter_set
from tests.unit.raft.world import Faults, Token, World
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchResponse
from tidemill.protocol.api.quorum import AddRaftVoterRequest, RemoveRaftVoterRequest, VoteResponse
from tidemill.raft import effects as do
from tidemill.raft import events as on
from tidemill.raft import messages
from tidemill.raft.effects import Effect
from tidemill.raft.roles import Follower, Leader
from tidemill.raft.state import QuorumConfig


def _duration_ms(text: str) -> int:
    return int(text[:-2]) if text.endswith("ms") else int(float(text[:-1]) * 1000)


class Script:
    def __init__(self) -> None:
        self.world: World
        self._lines: list[str] = []
        self._began_ms = 0

    def execute(self, command: Command) -> list[str]:
        self._lines = []
        if command.name != "nodes":
            self._began_ms = self.world.steady_ms
        getattr(self, "_do_" + command.name.replace("-", "_"))(command)
        return self._lines

    def _say(self, node_id: int, text: str) -> None:
        self._lines.append(f"+{self.world.steady_ms - self._began_ms}ms {node_id} {text}")

    # -- commands ----------------------------------------------------------------------------------------------

    def _do_nodes(self, command: Command) -> None:
        voters = list(range(1, int(command.words[0]) + 1))
        observers = [len(voters) + 1 + number for number in range(int(command.options.get("observers", 0)))]
        spread = command.options.get("jitter", "different")
        # Node 1 is the first to lose patience, then node 2 …; or all at once.
        jitter = (lambda node_id, bound: (node_id - 1) * bound // 10) if spread == "different" else _same
        faults = Faults()
        self.world = World(voters + observers, voter_set(*voters), 0, faults, QuorumConfig(), jitter)
        self.world.observe = self._observe
        self.world.fetched_entries_max = int(command.options.get("fetch", "4"))

    def _do_timeout(self, command: Command) -> None:
        self._expire(int(command.words[0]))
        self.world.advance(20)

    def _expire(self, node_id: int) -> None:
        node = self.world.nodes[node_id]
        role = node.machine.role
        if isinstance(role, Follower):
            role.fetch_deadline_ms = self.world.steady_ms
        elif not isinstance(role, Leader):
            role.election_deadline_ms = self.world.steady_ms
        self.world.step(node, on.TimerExpired())

    def _do_elect(self, command: Command) -> None:
        node = self.world.nodes[int(command.words[0])]
        self._expire(node.id)
        if not self.world.advance_until(lambda: node.machine.is_active_leader, 5_000):
            self._say(node.id, "was not elected")
        self.world.advance(10)

    def _do_until_leads(self, command: Command) -> None:
        node = self.world.nodes[int(command.words[0])]
        if not self.world.advance_until(lambda: node.machine.is_leader, 10_000):
            self._say(node.id, "was not elected")

    def _do_advance(self, command: Command) -> None:
        self.world.advance(_duration_ms(command.words[0]))

    def _do_partition(self, command: Command) -> None:
        groups = [{int(node_id) for node_id in group.split(",")} for group in command.words[0].split("|")]
        side = {node_id: number for number, group in enumerate(groups) for node_id in group}
        self.world.cut_links = {(a, b) for a in side for b in side if side[a] != side[b]}

    def _do_heal(self, command: Command) -> None:
        self.world.cut_links.clear()

    def _do_slow_disk(self, command: Command) -> None:
        duration_ms = _duration_ms(command.words[0])
        self.world.faults.sync_ms = (duration_ms, duration_ms)

    def _do_crash(self, command: Command) -> None:
        for word in command.words:
            node = self.world.nodes[int(word)]
            node.log.entries = list(node.disk.entries)
            self.world.crash(node.id)

    def _do_restart(self, command: Command) -> None:
        for word in command.words:
            self.world.start(int(word))

    def _do_append(self, command: Command) -> None:
        node = self.world.nodes[int(command.words[0])]
        values = command.words[1:]
        epoch = int(command.options.get("epoch", node.machine.epoch))
        self.world.step(node, on.AppendRequested("append", epoch, values, len(values)))

    def _do_resign(self, command: Command) -> None:
        self.world.step(self.world.nodes[int(command.words[0])], on.ResignRequested())

    def _do_snapshot(self, command: Command) -> None:
        node = self.world.nodes[int(command.words[0])]
        node.log.take_snapshot(node.machine.high_watermark)
        node.disk.keep(node.log)

    def _do_add_voter(self, command: Command) -> None:
        node_id, voter = int(command.words[0]), replica(int(command.words[1]))
        request = AddRaftVoterRequest(
            voter_id=voter.id, voter_directory_id=voter.directory_id, timeout_ms=5_000
        )
        self.world.step(self.world.nodes[node_id], on.AddVoterRequested("change", request))

    def _do_remove_voter(self, command: Command) -> None:
        node_id, voter = int(command.words[0]), replica(int(command.words[1]))
        request = RemoveRaftVoterRequest(voter_id=voter.id, voter_directory_id=voter.directory_id)
        self.world.step(self.world.nodes[node_id], on.RemoveVoterRequested("change", request))

    def _do_status(self, command: Command) -> None:
        for node in self.world.nodes.values():
            if not node.is_up:
                self._lines.append(f"{node.id} is down")
                continue
            machine = node.machine
            role = type(machine.role).__name__ + ("" if machine.is_voter else " (observer)")
            self._lines.append(
                f"{node.id} {role}, epoch {machine.epoch}, leader {machine.leader_id}, "
                f"end {node.log.log_end_offset}, high watermark {machine.high_watermark}"
            )

    def _do_logs(self, command: Command) -> None:
        for node in self.world.nodes.values():
            start = node.log.log_start_offset
            entries = [f"{value}@{epoch}" for epoch, value in node.log.entries[start:]]
            self._lines.append(f"{node.id} from {start}: " + ", ".join(entries))

    # -- output ------------------------------------------------------------------------------------------------

    def _observe(self, node_id: int, effect: Effect) -> None:
        text = self._in_words(node_id, effect)
        if text is not None:
            self._say(node_id, text)

    def _in_words(self, node_id: int, effect: Effect) -> str | None:
        match effect:
            case do.PersistQuorumState(state):
                voted = state.voted.id if state.voted else None
                return f"persists epoch {state.epoch}, leader {state.leader_id}, voted {voted}"
            case do.SendVote(_, to, request):
                part = messages.vote_request_part(request)
                assert part is not None
                kind = "a pre-vote" if part.pre_vote else "a vote"
                last = f"{part.last_offset}@{part.last_offset_epoch}"
                return f"asks {to} for {kind} in epoch {part.replica_epoch}, its log ends at {last}"
            case do.SendBeginQuorumEpoch(_, to, _):
                return f"tells {to} that it leads"
            case do.SendEndQuorumEpoch(_, to, end):
                ended = messages.end_request_part(end)
                assert ended is not None
                successors = [key.id for key in messages.successors_of(ended)]
                return f"tells {to} that epoch {ended.leader_epoch} ends, successors {successors}"
            case do.SendFetchSnapshot(_, to, _):
                return f"fetches a part of a snapshot from {to}"
            case do.Answer(token, response):
                return self._answer_in_words(token, response)
            case do.AppendToLog(_, epoch, base_offset, records, _):
                assert isinstance(records, list)
                return f"appends {','.join(records)} at {base_offset} in epoch {epoch}"
            case do.AppendFetched(base_offset, data):
                entries = [f"'{value}'@{epoch}" for epoch, value in decode(data)]
                return f"takes {', '.join(entries)} at {base_offset}"
            case do.AppendControl(epoch, base_offset, record):
                return f"appends '{control_value(record)}' at {base_offset} in epoch {epoch}"
            case _:
                return self._notice_in_words(effect)

    def _notice_in_words(self, effect: Effect) -> str | None:
        match effect:
            case do.RejectAppend(_, error):
                return f"rejects the append: {error.name}"
            case do.TruncateLog(end_offset):
                return f"truncates to {end_offset}"
            case do.AdvanceHighWatermark(offset):
                return f"knows that all before {offset} is committed"
            case do.InstallSnapshot(snapshot):
                return f"installs the snapshot {snapshot.end_offset}@{snapshot.epoch}"
            case do.BecomeLeader(epoch, start_offset):
                return f"leads epoch {epoch} from {start_offset} on"
            case do.ActivateLeader(epoch):
                return f"serves in epoch {epoch}"
            case do.ResignLeadership(epoch):
                return f"no longer leads epoch {epoch}"
            case do.FollowLeader(epoch, leader_id):
                return f"follows {leader_id} in epoch {epoch}" if leader_id else None
        return None

    def _answer_in_words(self, token: object, response: object) -> str | None:
        if not isinstance(token, Token):
            error = getattr(response, "error_code", 0)
            return f"answers {token}: {ErrorCode(error).name}"
        if isinstance(response, VoteResponse):
            vote = messages.vote_response_part(response)
            assert vote is not None
            if vote.error_code:
                return (
                    f"answers {token.node_id}: {ErrorCode(vote.error_code).name}, epoch {vote.leader_epoch}"
                )
            return f"{'grants it to' if vote.vote_granted else 'refuses'} {token.node_id}"
        if isinstance(response, FetchResponse):
            part = messages.fetch_response_part(response)
            if part is None:
                return None
            if part.diverging_epoch.end_offset >= 0:
                diverging = part.diverging_epoch
                return f"tells {token.node_id}: epoch {diverging.epoch} ends at {diverging.end_offset}"
            if part.snapshot_id.end_offset >= 0:
                return f"tells {token.node_id} to take the snapshot of {part.snapshot_id.end_offset}"
        return None


def _same(node_id: int, bound: int) -> int:
    return 0
