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
            name="serve",
            implementation="camshaft.plugins.serving.serve:Serve",
            summary="serve a recipe behind the OpenAI API",
        ),
        Component(
            kind="command",
            name="run",
            implementation="camshaft.plugins.serving.run:Run",
            summary="answer one prompt, without a server",
        ),
    ]
