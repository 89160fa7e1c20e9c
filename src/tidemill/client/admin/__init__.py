"""Administration: topics, groups, security and transactions of a cluster, and how healthy it is."""
