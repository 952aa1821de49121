"""What this package offers to camshaft. It is read at every start, so it imports nothing heavy."""

from __future__ import annotations

from pydantic import Field

from camshaft import Component, Settings, hookimpl


class ShortestFirstSettings(Settings):
    """Settings of `shortest_first`."""

    patience_s: float = Field(default=10.0, ge=0)
    """Seconds after which a waiting request goes first, whatever its length."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe the scheduler."""
    return [
        Component(
            kind="scheduler",
            name="shortest_first",
            implementation="camshaft_shortest_first.shortest_first:ShortestFirst",
            settings=ShortestFirstSettings,
            summary="the shortest prompt goes first, unless another has waited too long",
        )
    ]
