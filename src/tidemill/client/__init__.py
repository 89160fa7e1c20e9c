"""A small synchronous Kafka client on Tidemill's own codec: administration, produce, fetch by partition.

`connection` is one broker, `cluster` finds the right one and tries again, the rest builds requests. It joins no consumer
groups; confluent-kafka does that (`tidemill[client]`).
"""
