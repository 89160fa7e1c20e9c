"""The checks of a run: invariants after every turn of a process, and rules for the histories of clients."""
