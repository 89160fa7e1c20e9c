"""The replica manager: replicas of partitions as leader and follower, their ISR, retention and compaction."""
