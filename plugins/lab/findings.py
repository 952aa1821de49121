"""What `engine doctor` finds: libraries, limits, devices, and components that do not fit them."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from camshaft import native
from camshaft.contracts.attention import AttentionSpec
from camshaft.errors import CamshaftError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from camshaft import Component, Registry
    from camshaft.facts import DeviceFacts

LIBRARIES = (
    "camshaft", "torch", "triton", "numpy", "tokenizers", "pydantic", "pyzmq", "fastapi", "uvicorn",
    "flash-attn", "flashinfer-python", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12",
)  # fmt: skip
"""Distributions whose versions a report of a fault needs; some are optional."""

_ORDINARY = AttentionSpec(
    heads=8, kv_heads=2, head_dim=64, value_dim=64, dtype="bfloat16", page_tokens=16
)
"""What most models ask of attention."""


@dataclass(frozen=True, slots=True)
class Device:
    """What a hardware component found.

    Attributes:
        component: Its name.
        facts: Of the device; None if there is none.
        memory: Bytes, (total, free); None if there is none.
        reason: Why there is none.
        notes: What it chose, and why.
    """

    component: str
    facts: DeviceFacts | None
    memory: tuple[int, int] | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a component runs on one of the devices.

    Attributes:
        kind: Of the component.
        name: Of the component.
        devices: Hardware components that it runs on.
        reasons: Why not on the others, or not at all.
    """

    kind: str
    name: str
    devices: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Findings:
    """All of it.

    Attributes:
        libraries: Versions; None where one is not installed.
        machine: What else matters, in words.
        devices: One for each hardware component.
        fits: One for each component that depends on a device or does not load.
        broken: Plugins that cannot be used, in words.
    """

    libraries: dict[str, str | None]
    machine: dict[str, str]
    devices: Sequence[Device]
    fits: Sequence[Fit]
    broken: Sequence[str]

    @property
    def healthy(self) -> bool:
        """Whether something can run, and nothing is broken."""
        return any(one.facts is not None for one in self.devices) and not self.broken

    def as_mapping(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "libraries": self.libraries,
            "machine": self.machine,
            "devices": [_plain(one) for one in self.devices],
            "components": [asdict(one) for one in self.fits],
            "broken": list(self.broken),
            "healthy": self.healthy,
        }


def examine(registry: Registry) -> Findings:
    """Look at this machine. Imports every component, and keeps no device."""
    devices = [_device(one) for one in registry.components("hardware")]
    return Findings(
        libraries={name: _version(name) for name in LIBRARIES},
        machine=_machine(),
        devices=devices,
        fits=[_fit(one, devices) for one in registry.components() if one.kind != "hardware"],
        broken=registry.warnings(),
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _machine() -> dict[str, str]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = tempfile.gettempdir()
    return {
        "python": f"{sys.version.split()[0]} at {sys.executable}",
        "system": platform.platform(),
        "processors": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} usable",
        "compiled operations": native.found(),
        "open files": f"{files}; server.max_connections has to stay below",
        "temporary files": f"{folder}, {shutil.disk_usage(folder).free / 2**30:.1f} GiB free",
    }


def _device(component: Component) -> Device:
    try:
        backend = component.load()(component.settings())
        facts, memory, notes = backend.facts(), backend.memory(), tuple(backend.notes())
    except Exception as error:  # noqa: BLE001 - a driver may raise anything, and that is the finding
        return Device(component.name, None, reason=_first_line(error))
    return Device(component.name, facts, (memory.total, memory.free), notes=notes)


def _fit(component: Component, devices: Sequence[Device]) -> Fit:
    try:
        implementation = component.load()
    except PluginError as error:
        return Fit(component.kind, component.name, (), (_first_line(error),))
    runs: list[str] = []
    reasons: list[str] = []
    for device in devices:
        if device.facts is not None:
            against = list(_against(component, implementation, device.facts))
            reasons += [f"{device.component}: {one}" for one in against]
            if not against:
                runs.append(device.component)
    return Fit(component.kind, component.name, tuple(runs), tuple(dict.fromkeys(reasons)))


def _against(component: Component, implementation: Any, facts: DeviceFacts) -> Iterator[str]:  # noqa: ANN401
    """Yield what keeps a component from running on a device, of an ordinary model."""
    missing = sorted(component.needs - set(facts.capabilities))
    if missing:
        yield f"it needs {', '.join(missing)}"
    elif component.kind == "attention":
        yield from implementation.supports(_ORDINARY, facts)
    elif component.kind == "ops":
        provider = implementation(component.settings())
        against = [one.supports(facts, _ORDINARY.dtype) for one in provider.implementations()]
        if all(against):
            yield from dict.fromkeys(reason for one in against for reason in one)


def _first_line(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text if isinstance(error, CamshaftError) else f"{type(error).__name__}: {text}"


def _plain(device: Device) -> dict[str, Any]:
    facts = device.facts
    return {
        "component": device.component,
        "reason": device.reason,
        "name": facts and facts.name,
        "architecture": facts and facts.architecture,
        "dtypes": sorted(facts.dtypes) if facts else [],
        "capabilities": sorted(facts.capabilities) if facts else [],
        "memory": device.memory,
        "notes": list(device.notes),
    }
