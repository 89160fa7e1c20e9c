"""The simulated world in which a broker runs unchanged: its disk here, its network and clock beside it."""
