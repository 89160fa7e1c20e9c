"""The simulated seams of a process: virtual time and its event loops, a disk and a network that fail by the seed."""
