"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from camshaft.component import Component, Settings
from camshaft.facts import Capability
from camshaft.hooks import hookimpl


class TritonOpsSettings(Settings):
    """Settings of `triton`."""

    early_launch: bool = False
    """Lets an operation start while the kernel before it drains, on NVIDIA from Hopper on."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="ops",
            name="triton",
            implementation="camshaft.plugins.ops.triton:TritonOps",
            settings=TritonOpsSettings,
            summary="norms, rotary positions and gated activations in one launch each",
            needs=frozenset({Capability.TRITON}),
        )
    ]
