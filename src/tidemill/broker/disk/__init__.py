"""Work that blocks, kept off the event loop: syncing, steps of long work, the cleaning process, recovery points."""
