"""A share consumer (KIP-932): members of a group take records of the same partitions, each under a lock of its own.

| module | owns |
|---|---|
| `membership.py` | heartbeats and the assignments in their answers: pure |
| `session.py` | the share session with one broker: which partitions, which acknowledgements, which epoch: pure |
| `deliveries.py` | records that are held here: their locks, and what became of their acknowledgements |
| `consumer.py` | the threads: one for the group, one for each broker |
"""
