"""The Kafka side of the gateway: one producer, a pool of clients for requests, and fetches from offsets."""
