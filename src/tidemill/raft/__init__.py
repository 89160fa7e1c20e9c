"""The metadata quorum's Raft, as KRaft does it: pull based, with pre-vote, snapshots and changes of the voter
set.

One protocol machine (`core.RaftMachine`), no I/O. `voters.py`, `tracker.py` and `requests.py` are its
parts; `state.py` owns the role and what must be durable; `elections.py`, `leader.py`, `follower.py` and
`reconfiguration.py` are the rules.
"""
