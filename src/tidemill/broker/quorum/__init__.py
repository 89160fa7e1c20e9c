"""The metadata quorum: the Raft replica and its log, forming a cluster, the active controller, the life of a broker."""
