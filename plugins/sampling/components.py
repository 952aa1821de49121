"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class StandardSettings(Settings):
    """Settings of the `standard` sampler. It has none: every choice belongs to a request."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="sampling",
            name="standard",
            implementation="camshaft.plugins.sampling.standard:Standard",
            settings=StandardSettings,
            summary="all sampling parameters, grammar masks and exact draft verification",
        )
    ]
