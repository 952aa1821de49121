"""`engine doctor`: what this machine has, and which components can run on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

from camshaft.contracts.command import Command

from .findings import examine

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from camshaft import Registry, Settings

    from .findings import Device, Findings

_FAULT = 1


class Doctor(Command):
    """Looks at the machine and tries every component; needs no recipe."""

    description: ClassVar[str] = """\
Say what was found on this machine: versions of libraries, limits that matter, each hardware
component's device or why there is none, and the components that cannot run on these devices with
the reason. Attach it to a report of a fault.

  engine doctor
  engine doctor --json | jq '.components[] | select(.reasons != [])'

The exit code is 1 if no hardware component finds a device, or a plugin is broken.
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, args: Namespace, registry: Registry) -> int:
        """Look, print, and judge."""
        found = examine(registry)
        print(json.dumps(found.as_mapping(), indent=2) if args.json else table(found))
        return 0 if found.healthy else _FAULT


def table(found: Findings) -> str:
    """Return the findings for people."""
    have = ", ".join(f"{name} {one}" for name, one in found.libraries.items() if one)
    lack = ", ".join(name for name, one in found.libraries.items() if one is None)
    lines = ["libraries", f"  {have}", f"  not installed: {lack or 'none'}", "", "machine"]
    lines += [f"  {name}: {value}" for name, value in found.machine.items()]
    lines += ["", "devices"]
    for device in found.devices:
        lines += [
            f"  {device.component}: {_words(device)}",
            *(f"    {one}" for one in device.notes),
        ]
    several = sum(one.facts is not None for one in found.devices) > 1
    unfit = [one for one in found.fits if one.reasons and (several or not one.devices)]
    lines += ["", f"components: {len(found.fits) - len(unfit)} can run, {len(unfit)} cannot"]
    lines += [f"  {one.kind} {one.name}: {'; '.join(one.reasons)}" for one in unfit]
    lines += ["", "broken plugins", *(f"  {one}" for one in found.broken or ["none"])]
    return "\n".join(lines)


def _words(device: Device) -> str:
    if device.facts is None or device.memory is None:
        return f"no device: {device.reason}"
    total, free = (size / 2**30 for size in device.memory)
    has = ", ".join(sorted(device.facts.capabilities)) or "no special capabilities"
    dtypes = ", ".join(sorted(device.facts.dtypes))
    return (
        f"{device.facts.name} ({device.facts.architecture}), {free:.1f} of {total:.1f} GiB free, "
        f"{dtypes}; {has}"
    )
