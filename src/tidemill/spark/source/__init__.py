"""The source: options and offsets of a read, its pieces of archive, segments and live log, and its progress."""
