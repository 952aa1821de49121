"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from camshaft.component import Component, Settings
from camshaft.facts import Capability
from camshaft.hooks import hookimpl


class TritonOpsSettings(Settings):
    """Settings of `triton`."""

    early_launch: bool | None = None
    """Lets an operation start, and read weights, while the kernel before it drains, on NVIDIA from
    Hopper on; null is wherever the device can.
    """


class NativeOpsSettings(Settings):
    """Settings of `native`: none."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="ops",
            name="triton",
            implementation="camshaft.plugins.ops.triton:TritonOps",
            settings=TritonOpsSettings,
            summary="norms, rotary positions, gates and linears of few rows in one launch each",
            needs=frozenset({Capability.TRITON}),
        ),
        Component(
            kind="ops",
            name="native",
            implementation="camshaft.plugins.ops.native:NativeOps",
            settings=NativeOpsSettings,
            summary="norms and gates compiled for this processor",
        ),
    ]
