"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveInt

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class CpuSettings(Settings):
    """Settings of `cpu`."""

    threads: PositiveInt | Literal["auto"] = "auto"
    """Threads for the model; `auto` takes the cores that this process may use."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="hardware",
            name="cpu",
            implementation="camshaft.plugins.hardware.cpu:CpuBackend",
            settings=CpuSettings,
            summary="this machine's processor, through torch",
        )
    ]
