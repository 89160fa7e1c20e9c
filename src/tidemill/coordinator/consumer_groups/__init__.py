"""Groups of the server-side protocol (KIP-848): members, assignments, reconciliation, migration from classic groups."""
