"""The workloads of a world: groups of clients, their faults, and what each of them verifies at the end."""
