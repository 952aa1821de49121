"""Quantizers of weights and of cached keys and values."""
