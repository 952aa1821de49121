"""From a recipe to a running engine."""

from __future__ import annotations

from .build import Composed, compose
from .draw import Drawing, draw
from .garbage import spare_the_collector

__all__ = ["Composed", "Drawing", "compose", "draw", "spare_the_collector"]
