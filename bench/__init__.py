"""Benchmarks of a broker as its users see it: `python -m bench --help`."""
