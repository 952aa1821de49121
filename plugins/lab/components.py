"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from camshaft.component import Component
from camshaft.hooks import hookimpl


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="command",
            name="bench",
            implementation="camshaft.plugins.lab.bench:Bench",
            summary="measure a recipe on a workload",
        ),
        Component(
            kind="command",
            name="profile",
            implementation="camshaft.plugins.lab.profile:Profile",
            summary="show where the time of a workload goes",
        ),
    ]
