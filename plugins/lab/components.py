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
            name="bench",
            implementation="camshaft.plugins.lab.bench:Bench",
            summary="measure a recipe on a workload",
        ),
        Component(
            kind="command",
            name="profile",
            implementation="camshaft.plugins.lab.profile:Profile",
            summary="show where the time of a workload goes",
        ),
        Component(
            kind="command",
            name="explain",
            implementation="camshaft.plugins.lab.explain:Explain",
            summary="say what a recipe becomes on this machine, and how fast it could be",
        ),
        Component(
            kind="command",
            name="completion",
            implementation="camshaft.plugins.lab.completion:Completion",
            summary="print a script for a shell's Tab key",
        ),
        Component(
            kind="command",
            name="doctor",
            implementation="camshaft.plugins.lab.doctor:Doctor",
            summary="say what this machine has, and what can run on it",
        ),
        Component(
            kind="command",
            name="trace",
            implementation="camshaft.plugins.lab.trace_command:Trace",
            summary="look into a step that was kept, and run it again",
        ),
        Component(
            kind="command",
            name="tune",
            implementation="camshaft.plugins.lab.tune:Tune",
            summary="find out whether and how to split steps into nano-batches",
        ),
    ]
