"""What is counted, and under which names. Counting costs the hot path an addition; `status/` shows the counts."""
