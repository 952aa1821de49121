"""Executors of the core: torch, and two for tests and benchmarks (late, null)."""
