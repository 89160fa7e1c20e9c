"""Protocol machines of a partition's leader and follower, without I/O. `broker/partitions` drives them."""
