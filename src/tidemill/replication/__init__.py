"""What a leader and a follower of a partition decide. Machines without I/O; `broker/partitions/partition.py` drives them."""
