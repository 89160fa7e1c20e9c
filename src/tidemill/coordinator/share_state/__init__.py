"""The share coordinator: the durable state of the partitions of share groups (Kafka: ShareCoordinatorShard)."""
