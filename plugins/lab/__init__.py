"""Benchmarks, trace replay, simulation and comparisons."""
