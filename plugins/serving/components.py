"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from pydantic import PositiveInt

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class PromptSchemasSettings(Settings):
    """Settings of the route `prompt_schemas`."""

    pad: str = "\n"
    """Text of one token, of which as many stand at the end of a module as fill its last page."""
    most_schemas: PositiveInt = 256
    """Schemas that a server keeps, whoever registered them."""


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
        Component(
            kind="route",
            name="prompt_schemas",
            implementation="camshaft.plugins.serving.prompt_schemas:PromptSchemas",
            settings=PromptSchemasSettings,
            summary="prompts out of named modules, whose keys and values are computed once",
        ),
        Component(
            kind="route",
            name="maintenance",
            implementation="camshaft.plugins.serving.maintenance:Maintenance",
            summary="endpoints that empty the cache, and pause and resume the server",
        ),
    ]
