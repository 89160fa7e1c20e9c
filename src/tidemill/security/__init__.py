"""Who a peer is, what it may do, and how fast: the parts of security that decide, without I/O, clock or randomness."""
