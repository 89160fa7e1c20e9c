"""Benchmarks of a broker as its users meet it: `python -m bench --help`."""
