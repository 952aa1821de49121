"""The command `engine`."""

from .main import main

__all__ = ["main"]
