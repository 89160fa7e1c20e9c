"""A structure-aware fuzzer: requests of every API and version, extreme, mutated and in sequence, against real brokers.

`python -m tests.wire.fuzz --help`, or `make fuzz MINUTES=10 SEED=1`. `frames.py` makes frame n of a seed from kio's
schemas. `attack.py` sends them over many connections and accounts for every answer. `sequences.py` walks through
groups, transactions and fetch sessions so that frames meet state, and `features.py` through delays, views, topics with fewer
partitions and share groups. `topics.py` has the topics of each kind. `watchdog.py` says whether the brokers stayed well.
"""
