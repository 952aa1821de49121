"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class ReferenceSettings(Settings):
    """Settings of `reference`: none."""


class SdpaSettings(Settings):
    """Settings of `sdpa`: none."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="attention",
            name="reference",
            implementation="camshaft.plugins.attention.reference:ReferenceAttention",
            settings=ReferenceSettings,
            summary="one token at a time, independent of the batch: the slow twin of all others",
        ),
        Component(
            kind="attention",
            name="sdpa",
            implementation="camshaft.plugins.attention.sdpa:SdpaAttention",
            settings=SdpaSettings,
            summary="torch's scaled dot product attention over gathered pages",
        ),
    ]
