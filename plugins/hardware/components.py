"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class CpuSettings(Settings):
    """Settings of `cpu`."""

    threads: PositiveInt | Literal["auto"] = "auto"
    """Threads for the model; `auto` takes the physical cores that this process may use, of one NUMA
    node, and no more than a container's quota."""
    pin: bool | Literal["auto"] = "auto"
    """Keep each thread on a core; `auto` does so where there is a thread for each of the cores and
    no quota shares them out."""
    spins: NonNegativeInt | Literal["auto"] = "auto"
    """How often a thread looks for work before it sleeps; `auto` depends on a quota, too."""


class CudaSettings(Settings):
    """Settings of `cuda` and `rocm`."""

    index: NonNegativeInt = 0
    """Which device, as torch counts them."""
    headroom: float = Field(default=0.05, ge=0, lt=1)
    """Share of the device's memory that is left alone."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="hardware",
            name="cpu",
            implementation="camshaft.plugins.hardware.cpu:CpuBackend",
            settings=CpuSettings,
            summary="this machine's processor, through torch and operations compiled for it",
        ),
        Component(
            kind="hardware",
            name="cuda",
            implementation="camshaft.plugins.hardware.cuda:CudaBackend",
            settings=CudaSettings,
            summary="an NVIDIA accelerator, through torch",
        ),
        Component(
            kind="hardware",
            name="rocm",
            implementation="camshaft.plugins.hardware.rocm:RocmBackend",
            settings=CudaSettings,
            summary="an AMD accelerator, through torch; not yet run on one",
        ),
    ]
