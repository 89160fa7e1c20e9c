"""The counters of a broker, and their names.

Counting costs the hot path an addition; `status/` shows the counts.
"""
