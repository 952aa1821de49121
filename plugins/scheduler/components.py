"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class ContinuousSettings(Settings):
    """Settings of `continuous`."""

    chunk_tokens: PositiveInt | Literal["off"] | None = None
    """Most prompt tokens of one request in a step; without it the step's budget is the limit, and
    `off` starts a prompt only when the rest of the budget holds all of it."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="scheduler",
            name="continuous",
            implementation="camshaft.plugins.scheduler.continuous:Continuous",
            settings=ContinuousSettings,
            summary="mixed steps under a token budget: decodes first, prompts in chunks",
        )
    ]
