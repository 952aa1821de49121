"""Attention backends: how queries meet cached keys."""
