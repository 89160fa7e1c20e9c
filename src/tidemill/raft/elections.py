"""The election rules: when a replica grants a vote, and how it stands for election.

| request          | granted when                                                                                    |
|------------------|-------------------------------------------------------------------------------------------------|
| vote             | no vote was cast in this epoch, its leader is unknown, and the candidate's log is not behind     |
| repeated vote    | the candidate is the one that got the vote                                                       |
| pre-vote         | the candidate's log is not behind, and this replica neither leads nor has fetched from a leader  |

A larger epoch is adopted before the request is judged; a smaller one is rejected with the current epoch. The voter set of
the receiver may be older than the candidate's (KIP-853), so neither needs to be a voter in it. But while a leader is alive,
an unknown candidate changes nothing, not even the epoch. A fixed voter set accepts its own voters only.

A claim to lead is accepted from a voter, from the candidate that got this replica's vote, and from the current leader. No
request raises the epoch beyond the credible limit.
"""

from __future__ import annotations

from tidemill.errors import ErrorCode
from tidemill.protocol.api.quorum import (
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    VoteRequest,
    VoteRequestPartitionData,
    VoteResponse,
)
from tidemill.raft import messages
from tidemill.raft.effects import SendEndQuorumEpoch, SendVote
from tidemill.raft.leader import lead
from tidemill.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Unattached
from tidemill.raft.state import CLAIMED_EPOCH_MAX, QuorumState
from tidemill.raft.voters import ReplicaKey

# -- being asked ---------------------------------------------------------------------------------------------


def answer_vote(q: QuorumState, request: VoteRequest, steady_ms: int) -> VoteResponse:
    if request.cluster_id is not None and q.cluster_id is not None and request.cluster_id != q.cluster_id:
        return VoteResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    part = messages.vote_request_part(request)
    if part is None:
        return VoteResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = _refusal(q, request, part)
    if error is not ErrorCode.NONE:
        return messages.vote_response(error, q.leader_id, q.epoch)
    candidate = ReplicaKey(part.replica_id, part.replica_directory_id)
    if part.replica_epoch > q.epoch:
        if q.voters.has(candidate) or (not part.pre_vote and _would_vote(q, part)):
            leave_for_larger_epoch(q, part.replica_epoch, steady_ms)
        elif not part.pre_vote:
            return messages.vote_response(ErrorCode.NONE, q.leader_id, q.epoch)
    granted = _would_vote(q, part) if part.pre_vote else _votes(q, candidate, part, steady_ms)
    return messages.vote_response(ErrorCode.NONE, q.leader_id, q.epoch, vote_granted=granted)


def _refusal(q: QuorumState, request: VoteRequest, part: VoteRequestPartitionData) -> ErrorCode:
    asked = ReplicaKey(request.voter_id, part.voter_directory_id)
    # A pre-vote carries the sender's current epoch, a vote the epoch that it has just begun.
    last_epoch_max = part.replica_epoch if part.pre_vote else part.replica_epoch - 1
    if is_stale(q, part.replica_epoch):
        return ErrorCode.FENCED_LEADER_EPOCH
    if part.replica_id < 0 or part.last_offset < 0 or not 0 <= part.last_offset_epoch <= last_epoch_max:
        return ErrorCode.INVALID_REQUEST
    if not q.is_credible(part.replica_epoch):
        return ErrorCode.INVALID_REQUEST
    if asked.id >= 0 and not q.own.matches(asked):
        return ErrorCode.INVALID_VOTER_KEY
    if not q.voters.is_dynamic and q.voters.get(part.replica_id) is None:
        return ErrorCode.INCONSISTENT_VOTER_SET
    return ErrorCode.NONE


def is_stale(q: QuorumState, epoch: int) -> bool:
    return epoch < q.epoch


def is_up_to_date(q: QuorumState, last_epoch: int, end_offset: int) -> bool:
    """Whether a log with this end holds everything that this replica helped to commit."""
    return (last_epoch, end_offset) >= (q.log.last_epoch, q.log.log_end_offset)


def _would_vote(q: QuorumState, part: VoteRequestPartitionData) -> bool:
    if q.is_incomplete:
        return False
    match q.role:
        case Leader() | Follower(has_fetched=True):
            return False
    return is_up_to_date(q, part.last_offset_epoch, part.last_offset)


def _votes(q: QuorumState, candidate: ReplicaKey, part: VoteRequestPartitionData, steady_ms: int) -> bool:
    if not may_vote_for(q, candidate):
        return False
    if q.election.voted is None:
        if not is_up_to_date(q, part.last_offset_epoch, part.last_offset):
            return False
        q.vote_for(candidate, steady_ms)
    return True


def may_vote_for(q: QuorumState, candidate: ReplicaKey) -> bool:
    if q.is_incomplete:
        return False
    if q.election.voted is not None:
        return q.election.voted == candidate
    return q.election.leader_id is None


# -- learning ------------------------------------------------------------------------------------------------


def leave_for_larger_epoch(q: QuorumState, epoch: int, steady_ms: int) -> None:
    """Leave the current role for a larger epoch."""
    q.become_unattached(epoch, steady_ms)


def claim_error(q: QuorumState, leader_id: int, epoch: int) -> ErrorCode:
    """Returns the error of a claim to lead, or to have led, in `epoch`; NONE when this replica accepts it."""
    if is_stale(q, epoch):
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader_id < 0 or leader_id == q.own.id or not q.is_credible(epoch):
        return ErrorCode.INVALID_REQUEST
    if q.voters.get(leader_id) is not None:
        return ErrorCode.NONE
    voted = q.election.voted
    is_known = leader_id == q.election.leader_id or (voted is not None and voted.id == leader_id)
    return ErrorCode.NONE if is_known and epoch == q.epoch else ErrorCode.INCONSISTENT_VOTER_SET


def adopt(q: QuorumState, epoch: int, leader_id: int | None, steady_ms: int) -> None:
    """Adopt the epoch and leader that a peer has reported."""
    if epoch > CLAIMED_EPOCH_MAX:
        return
    # Another replica with this node's id led before this one's disk was replaced.
    leader_id = None if leader_id == q.own.id else leader_id
    if epoch > q.epoch:
        if leader_id is None:
            leave_for_larger_epoch(q, epoch, steady_ms)
        else:
            q.become_follower(epoch, leader_id, steady_ms)
    elif epoch == q.epoch and leader_id is not None and q.election.leader_id is None:
        q.become_follower(epoch, leader_id, steady_ms)


# -- asking --------------------------------------------------------------------------------------------------


def poll_election(q: QuorumState, role: Prospective | Candidate, steady_ms: int) -> None:
    """Check whether the election is decided; otherwise send requests to the voters that have not responded."""
    is_won = q.voters.is_majority(role.granted)
    is_lost = not q.voters.is_majority(set(q.voters.ids) - role.rejected)
    if isinstance(role, Prospective):
        if is_won:
            q.become_candidate(steady_ms)
        elif is_lost or steady_ms >= role.election_deadline_ms:
            _step_back(q, steady_ms)
        else:
            _ask(q, role, steady_ms)
        return
    if is_won:
        lead(q, role.granted, steady_ms)
    elif steady_ms >= role.election_deadline_ms:
        q.elections_lost += 1
        q.become_prospective(steady_ms)
    elif is_lost and not role.has_lost:
        role.has_lost = True
        role.election_deadline_ms = min(role.election_deadline_ms, steady_ms + q.election_backoff_ms())
    else:
        _ask(q, role, steady_ms)


def _step_back(q: QuorumState, steady_ms: int) -> None:
    """Leave a lost pre-vote: follow the leader that was known, or wait unattached."""
    if q.election.leader_id is not None:
        q.become_follower(q.epoch, q.election.leader_id, steady_ms)
    else:
        q.become_unattached(q.epoch, steady_ms)


def _ask(q: QuorumState, role: Prospective | Candidate, steady_ms: int) -> None:
    for voter in q.other_voters:
        if (
            voter.id in role.granted
            or voter.id in role.rejected
            or not q.requests.is_ready(voter.id, steady_ms)
        ):
            continue
        part = VoteRequestPartitionData(
            replica_epoch=q.epoch,
            replica_id=q.own.id,
            replica_directory_id=q.own.directory_id,
            last_offset_epoch=q.log.last_epoch,
            last_offset=q.log.log_end_offset,
            pre_vote=isinstance(role, Prospective),
        )
        request = messages.vote_request(q.cluster_id, voter, part)
        q.send(SendVote(q.requests.next_number(), voter.id, request), steady_ms)


def vote_answered(q: QuorumState, sent: SendVote, response: VoteResponse, steady_ms: int) -> None:
    part = messages.vote_response_part(response)
    role = q.role
    if part is None or response.error_code:
        q.requests.failed(sent.to, steady_ms)
        return
    adopt(q, part.leader_epoch, messages.known_leader(part.leader_id), steady_ms)
    if q.role is not role or not isinstance(role, Prospective | Candidate):
        return
    if part.error_code:
        q.requests.failed(sent.to, steady_ms)
    elif part.vote_granted:
        role.granted.add(sent.to)
    else:
        role.rejected.add(sent.to)


def poll_unattached(q: QuorumState, role: Unattached, steady_ms: int) -> None:
    if q.is_voter and (q.is_only_voter or steady_ms >= role.election_deadline_ms):
        q.become_prospective(steady_ms)


# -- the end of an epoch -------------------------------------------------------------------------------------


def poll_resigned(q: QuorumState, role: Resigned, steady_ms: int) -> None:
    if steady_ms >= role.election_deadline_ms or not role.unacknowledged:
        if q.is_voter and (steady_ms >= role.election_deadline_ms or q.is_only_voter):
            q.become_prospective(steady_ms)
        elif not q.is_voter:
            q.become_unattached(q.epoch, steady_ms)
        return
    for voter_id in sorted(role.unacknowledged):
        if q.requests.is_ready(voter_id, steady_ms):
            request = messages.end_request(q.cluster_id, q.own.id, q.epoch, role.successors)
            q.send(SendEndQuorumEpoch(q.requests.next_number(), voter_id, request), steady_ms)


def end_epoch_answered(
    q: QuorumState, sent: SendEndQuorumEpoch, response: EndQuorumEpochResponse, steady_ms: int
) -> None:
    part = messages.end_response_part(response)
    if part is None or response.error_code:
        q.requests.failed(sent.to, steady_ms)
        return
    adopt(q, part.leader_epoch, messages.known_leader(part.leader_id), steady_ms)
    if isinstance(q.role, Resigned):
        if part.error_code:
            q.requests.failed(sent.to, steady_ms)
        else:
            q.role.unacknowledged.discard(sent.to)


def answer_end_epoch(
    q: QuorumState, request: EndQuorumEpochRequest, steady_ms: int
) -> EndQuorumEpochResponse:
    """Handle the leader's resignation. Its first successor starts an election at once, each next one a little later."""
    if request.cluster_id is not None and q.cluster_id is not None and request.cluster_id != q.cluster_id:
        return EndQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    part = messages.end_request_part(request)
    if part is None:
        return EndQuorumEpochResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = claim_error(q, part.leader_id, part.leader_epoch)
    if error is ErrorCode.NONE:
        adopt(q, part.leader_epoch, part.leader_id, steady_ms)
        if isinstance(q.role, Follower) and q.role.leader_id == part.leader_id:
            successors = messages.successors_of(part)
            ranks = [rank for rank, key in enumerate(successors) if q.own.matches(key)]
            pause_ms = _succession_pause_ms(q, ranks[0] if ranks else len(successors))
            q.role.fetch_deadline_ms = min(q.role.fetch_deadline_ms, steady_ms + pause_ms)
            q.role.has_fetched = False
    return messages.end_response(error, q.leader_id, q.epoch)


def _succession_pause_ms(q: QuorumState, rank: int) -> int:
    """The delay before an election: none for the first successor, then doubled for each, up to the largest backoff."""
    if rank == 0:
        return 0
    return min(100 << min(rank - 1, 10), q.config.election_backoff_ms_max)
