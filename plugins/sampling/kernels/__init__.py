"""Triton kernels of the choice of tokens, each with the function that launches it."""
