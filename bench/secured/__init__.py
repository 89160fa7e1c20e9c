"""One broker behind TLS: throughput and acks as without, handshakes, and how well quotas hold their rate."""
