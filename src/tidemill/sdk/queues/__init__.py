"""Queues: jobs of a topic, shared among workers by a share group."""
