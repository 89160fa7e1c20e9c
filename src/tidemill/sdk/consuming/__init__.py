"""Consuming: one consumer of a group, its batches and positions, when offsets are committed, and retries."""
