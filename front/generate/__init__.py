"""From prompts and parameters to answers: shared by the Python API and the server."""

from __future__ import annotations

from .answers import Call, Choice, Delta, TokenReport, TokenText, Usage
from .beams import Beams
from .best import best_of
from .check import check_beams, check_name, check_params, check_scope
from .generation import Generation
from .prompts import Prompter, split_prompts
from .vectors import pooled, unit

__all__ = [
    "Beams",
    "Call",
    "Choice",
    "Delta",
    "Generation",
    "Prompter",
    "TokenReport",
    "TokenText",
    "Usage",
    "best_of",
    "check_beams",
    "check_name",
    "check_params",
    "check_scope",
    "pooled",
    "split_prompts",
    "unit",
]
