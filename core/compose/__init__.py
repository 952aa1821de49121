"""From a recipe to a running engine."""

from __future__ import annotations

from .build import Composed, compose
from .draw import Drawing, draw

__all__ = ["Composed", "Drawing", "compose", "draw"]
