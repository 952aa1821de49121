"""Benchmarks: each is run by one command and appends to `results/`."""
