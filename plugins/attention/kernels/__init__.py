"""Triton kernels of the `triton` backend. Imported only when a recipe uses it."""
