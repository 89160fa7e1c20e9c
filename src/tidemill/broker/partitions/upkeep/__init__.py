"""Background work on the hosted logs: retention, flushes, checkpoints, compaction, tag indexes, stray folders."""
