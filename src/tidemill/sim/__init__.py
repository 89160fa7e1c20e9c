"""The deterministic simulation of a cluster: production nodes on a simulated disk, network and clock."""
