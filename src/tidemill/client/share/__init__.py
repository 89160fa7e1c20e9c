"""A share consumer (KIP-932): members of a group take records of the same partitions, each under a lock of its own.

| module | owns |
|---|---|
| `membership.py` | heartbeats and the assignments in their answers: pure |
| `session.py` | the share session with one broker: which partitions, which acknowledgements, which epoch: pure |
| `deliveries.py` | records that are held here: their locks, and what became of their acknowledgements |
| `node_thread.py` | the thread that speaks with one broker |
| `consumer.py` | the member: the thread that speaks with the group's coordinator, and what users call |
"""
