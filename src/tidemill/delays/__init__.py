"""Delayed and scheduled messages: what a partition's log says about them, without I/O, clock or randomness."""
