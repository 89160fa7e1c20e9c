"""The network seam and what stands on it: listeners and connections of clients, channels to other nodes."""
