"""What runs before the first request: compilers, libraries that plan, and every kind of step."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Literal

from camshaft.executor.rehearsal import rehearse
from camshaft.executor.warm_up import warm_up

from ..facts import Capability
from ..kernel_launch import compiling_ahead, know_the_compiler, same_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.executor.torch_executor import TorchExecutor

    from ..recipe.sections import SchedulerSection
    from .draw import Drawing

MOST_THREADS = 16
"""For the compiler; a few dozen kernels do not keep more busy."""


def wanted(drawing: Drawing) -> Literal["off", "kernels", "graphs"]:
    """Return what the recipe wants to have run."""
    if not drawing.causal:  # what is run to warm up chooses tokens
        return "off"
    asked = drawing.recipe.engine.warm_up
    if asked != "auto":
        return asked
    return "kernels" if Capability.GRAPHS in drawing.facts.capabilities else "off"


def prepare_kernels(
    drawing: Drawing, executor: TorchExecutor, room: int, progress: Callable[[str], None]
) -> None:
    """Compile kernels, several at a time, while libraries choose their plans.

    Libraries keep plans for each thread: they are asked here, in the thread that will run the
    steps, and kernels are found out about in another one.
    """
    if wanted(drawing) == "off":
        return
    progress("preparing kernels")
    scheduler = drawing.recipe.scheduler
    compiles = Capability.TRITON in drawing.facts.capabilities
    with ThreadPoolExecutor(1, initializer=same_device()) as pool:
        compiled = pool.submit(_compile, executor, scheduler, room) if compiles else None
        for backend in dict.fromkeys(one for pair in drawing.attention for one in pair):
            backend.warm_up(drawing.hardware.device, scheduler.step_tokens)
    if compiled is not None:
        compiled.result()


def _compile(executor: TorchExecutor, scheduler: SchedulerSection, room: int) -> None:
    """Compile all kernels of an executor, which nobody else uses meanwhile."""
    know_the_compiler()
    with compiling_ahead(_threads()):
        slots, step_tokens = scheduler.max_running, scheduler.step_tokens
        rehearse(executor, slots=slots, step_tokens=step_tokens, room=room)


def run_every_step(
    drawing: Drawing, executor: TorchExecutor, room: int, progress: Callable[[str], None]
) -> None:
    """Run every kind of step, and record those that the recipe wants to have at once."""
    mode, scheduler = wanted(drawing), drawing.recipe.scheduler
    if mode == "off":
        return
    progress("warming up")
    graphs = executor.graphs
    warm_up(
        executor,
        slots=scheduler.max_running,
        step_tokens=scheduler.step_tokens,
        room=room,
        decode_sizes=graphs.sizes if graphs is not None and mode == "graphs" else (),
    )


def _threads() -> int:
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))
