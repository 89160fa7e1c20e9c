"""The Raft protocol of the metadata quorum, as in KRaft: pull based, with pre-vote, snapshots and voter set changes.

It is one protocol machine without I/O (`core.RaftMachine`). `voters.py`, `tracker.py` and `requests.py` are its parts.
`state.py` owns the role and the durable state. `elections.py`, `leader.py`, `follower.py` and `reconfiguration.py`
hold the rules.
"""
