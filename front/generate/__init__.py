"""From prompts and parameters to answers: shared by the Python API and the server."""

from __future__ import annotations

from .answers import Call, Choice, Delta, TokenReport, TokenText, Usage
from .best import best_of
from .check import check_name, check_params, check_scope
from .generation import Generation
from .prompts import Prompter, split_prompts

__all__ = [
    "Call",
    "Choice",
    "Delta",
    "Generation",
    "Prompter",
    "TokenReport",
    "TokenText",
    "Usage",
    "best_of",
    "check_name",
    "check_params",
    "check_scope",
    "split_prompts",
]
