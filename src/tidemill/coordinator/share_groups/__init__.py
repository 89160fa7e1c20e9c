"""Share groups (KIP-932): members, assignments, and which partitions of a group have state in the share coordinator."""
