"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class ContinuousSettings(Settings):
    """Settings of `continuous`."""

    chunk_tokens: PositiveInt | Literal["budget", "off"] = "budget"
    """Most prompt tokens of one request in a step. `budget` is what decodes leave of the step;
    `off` starts a prompt only when that holds all of it, unless it is larger than a step."""

    chunk_align: PositiveInt = 1024
    """Chunks that leave some of a prompt for later end at multiples of it, so that attention finds
    whole blocks. Only where prompt, chunk and step have four times as many tokens; 1 cuts none."""

    share_prefixes: bool = True
    """Start a prompt one step later when another one in this step computes its next page: by then
    it is in the cache. Off, prompts that come together compute a common prefix each."""


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
