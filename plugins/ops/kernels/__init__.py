"""Triton kernels of the operations, each with the function that launches it."""
