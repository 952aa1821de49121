"""The operations of a model's layers, measured on the device at hand as the engine runs them.

Whole steps run under the profiler, which tells their parts apart; a step holds either prompts or
requests that decode, but for one that holds all, so that each time belongs to one operation. What
an operation needs of the device is counted, see `camshaft.plugins.lab.roofline`.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.model import Handover
from camshaft.contracts.quant import StepContext
from camshaft.errors import CamshaftError
from camshaft.executor.metadata import step_tensors
from camshaft.step import Step

from ..ranges import DECODE, PREFILL, Ranges, StepWork
from ..rates import Rates, measured_rates
from ..roofline import work_of
from ..subject import executor_of, shape_of
from ..trace import COPIES, OTHER, operations, read_trace
from .costs import LINEARS, Costs, Curve, Host, Mix
from .operations import Operation
from .side_by_side import measured_overlap
from .steps import step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from camshaft.compose import Composed
    from camshaft.executor.metadata import StepTensors
    from camshaft.executor.torch_executor import TorchExecutor

    from ..roofline import Work
    from .costs import Link
    from .steps import Load

_REPEATS = 3
_NEWS = ("admissions", "write_group", "write_slot", "write_first", "write_pages")

_PARTS: Mapping[str, Mapping[str, float]] = {
    "qkv": {"qkv": 1, "rope": 1, "norm": 0.5},
    "out": {"out": 1},
    "gate_up": {"gate_up": 1, "activation": 1, "norm": 0.5},
    "down": {"down": 1},
    "attention": {DECODE: 1, PREFILL: 1},
    "ends": {"embed": 1, "head": 1, COPIES: 1, OTHER: 1},
}
"""Of which parts of a step an operation consists. Half of the norms stand before each of two
linears; the last norm, behind all layers, is counted with them."""


@dataclass(slots=True)
class Measured:
    """A step as it ran.

    Attributes:
        mix: What it held.
        tokens: Of it.
        operations: By name: of one layer, but for the ends.
        seconds: Of all of it, on the device.
    """

    mix: Mix
    tokens: int
    operations: dict[str, Operation]
    seconds: float


@dataclass(frozen=True, slots=True)
class Survey:
    """All that was measured.

    Attributes:
        costs: Of every operation.
        largest: The largest step.
        rates: Of the device.
    """

    costs: Costs
    largest: Measured
    rates: Rates


class Subject:
    """A composed engine whose steps are run one by one."""

    def __init__(self, composed: Composed, load: Load) -> None:
        """Prepare.

        Args:
            composed: Fresh; its loop is not used.
            load: Fits it.
        """
        self.composed = composed
        self.executor = executor_of(composed, "tune")
        self.load = load
        self.device = composed.drawing.hardware.device
        self.is_cpu = torch.device(self.device).type == "cpu"
        self._ranges: Ranges | None = None

    def launches(self) -> Host:
        """Measure what launches cost the host. Call it before anything else."""
        mix = self.load.mix
        if self.is_cpu:  # there a launch computes, so that it is in the times of the operations
            return Host(0.0, 0.0)
        decode = self.launch_s(Mix(mix.decodes, 0)) if mix.decodes else 0.0
        return Host(decode, self.launch_s(mix))

    def launch_s(self, mix: Mix) -> float:
        """Return what a step costs in which nobody is new and nobody gets a page."""
        first = step_of(mix, self.load, self.composed)
        later = replace(first, **{name: getattr(Step(), name) for name in _NEWS})
        times = []
        for step in (first, *[later] * (_REPEATS + 1)):  # the first two compile and record
            self.executor.parts.state.update(first)
            self._wait()
            start = time.perf_counter()
            self.executor.launch(step)
            times.append(time.perf_counter() - start)
            self.executor.sample(step.id)
            self.executor.wait(step.id)
        return min(times[2:])

    @torch.inference_mode()
    def measure(self, mix: Mix, rates: Rates) -> Measured:
        """Run a step under the profiler."""
        if self._ranges is None:
            self._ranges = Ranges().of(self.executor)
        step = step_of(mix, self.load, self.composed)
        tensors = self._tensors(step)
        times = self._profiled(lambda: _forward(self.executor, tensors))
        shape = shape_of(self.composed, self.executor)
        lengths = np.diff(step.starts)
        works = work_of(StepWork(lengths, step.context, mix.requests), self._ranges.linears, shape)
        strange = set(times) - {name for parts in _PARTS.values() for name in parts}
        if strange or not set(LINEARS) <= set(times):
            raise CamshaftError(
                f"engine tune knows layers of {', '.join(LINEARS)}; this model's steps have the "
                f"parts {', '.join(sorted(times))}"
            )
        found = {}
        for name, parts in _PARTS.items():
            share = 1 if name == "ends" else 1 / shape.layers
            found[name] = _operation(name, parts, share, times, works, rates)
        return Measured(mix, int(lengths.sum()), found, sum(times.values()))

    def tensors(self, mix: Mix) -> StepTensors:
        """Return a step, ready to be attended to."""
        return self._tensors(step_of(mix, self.load, self.composed))

    def _tensors(self, step: Step) -> StepTensors:
        parts = self.executor.parts
        parts.state.update(step)
        return step_tensors(step, parts.state, parts.groups, [None] * len(parts.groups))

    def _profiled(self, work: Callable[[], object]) -> dict[str, float]:
        """Return the seconds of each part on the device, the median of some times."""
        work()  # compiles, plans, and takes memory
        self._wait()
        runs = [self._profiled_once(work) for _ in range(_REPEATS)]
        return {
            part: statistics.median(run.get(part, 0.0) for run in runs)
            for part in dict.fromkeys(part for run in runs for part in run)
        }

    def _profiled_once(self, work: Callable[[], object]) -> dict[str, float]:
        activity = torch.profiler.ProfilerActivity
        activities = [activity.CPU, *([] if self.is_cpu else [activity.CUDA])]
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            work()
            self._wait()
        times: dict[str, float] = defaultdict(float)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json.gz"
            profiler.export_chrome_trace(str(path))
            for one in operations(read_trace(path)):
                times[one.part] += one.us * 1e-6
        return dict(times)

    def _wait(self) -> None:
        if not self.is_cpu:
            torch.cuda.synchronize(self.device)


def _forward(executor: TorchExecutor, tensors: StepTensors) -> None:
    """Run all layers and the head, launched one by one."""
    model = executor.parts.model
    handover, _ = executor.forward(tensors)
    assert tensors.rows is not None, "these requests all get a token"
    rows, residual = tensors.rows.tokens, handover.residual
    picked = Handover(handover.hidden[rows], None if residual is None else residual[rows])
    model.logits(model.norm(picked), StepContext(tokens=len(rows)))


def _operation(
    name: str,
    parts: Mapping[str, float],
    share: float,
    times: Mapping[str, float],
    works: Mapping[str, Work],
    rates: Rates,
) -> Operation:
    """Join parts of a step to an operation: `share` of so much of each."""

    def total(of: Callable[[str], float]) -> float:
        return share * sum(part * of(each) for each, part in parts.items())

    seconds = total(lambda each: times.get(each, 0.0))
    flops = total(lambda each: works[each].flops if each in works else 0.0)
    moved = total(lambda each: works[each].bytes if each in works else 0.0)
    compute, memory = flops / rates.gemm_flop_s, moved / rates.bytes_s
    # what lies in a cache of the device is read faster than memory can
    return Operation(name, seconds, (min(compute, seconds), min(memory, seconds), 0.0))


def mixes(load: Load) -> list[Mix]:
    """Return what is measured: parts of each kind, and all at once."""
    decodes, prompts = load.mix
    some = {-(-decodes * part // 4) for part in (1, 2, 3, 4)} - {0}
    more = {-(-prompts * part // 8) for part in (1, 2, 4, 6, 8)} - {0}
    whole = [load.mix] if decodes and prompts else []
    return [*(Mix(one, 0) for one in sorted(some)), *(Mix(0, one) for one in sorted(more)), *whole]


def survey(
    composed: Composed, load: Load, link: Link | None, progress: Callable[[str], None]
) -> Survey:
    """Measure a model.

    Args:
        composed: Fresh.
        load: The largest step.
        link: Between devices, if it stands for one of several.
        progress: Is told what happens.
    """
    load.check(composed)
    subject = Subject(composed, load)
    progress("measuring launches")
    host = subject.launches()
    dtype: torch.dtype = getattr(torch, composed.drawing.recipe.model.dtype)
    rates = measured_rates(subject.device, dtype)
    steps = []
    for mix in mixes(load):
        progress(f"measuring {mix.decodes} decodes and {mix.prompts} prompts")
        steps.append(subject.measure(mix, rates))
    overlap = 0.0
    if load.mix.decodes and not subject.is_cpu:
        progress("measuring operations side by side")
        tensors = subject.tensors(Mix(load.mix.decodes, 0))
        overlap = measured_overlap(subject.executor, tensors, load.mix.tokens(load.length))
    curves = _curves(steps)
    costs = Costs(
        layers=len(subject.executor.parts.model.layers),
        length=load.length,
        linears={name: curves[name] for name in LINEARS},
        decode=curves["decode"],
        prefill=curves["prefill"],
        ends=curves["ends"],
        overlap=overlap,
        host=host,
        link=link,
    )
    return Survey(costs, steps[-1], rates)


def _curves(steps: Sequence[Measured]) -> dict[str, Curve]:
    """Return each operation by what its time depends on."""
    curves = {name: Curve({one.tokens: one.operations[name] for one in steps}) for name in LINEARS}
    curves["ends"] = Curve({one.mix.requests: one.operations["ends"] for one in steps})
    attention = [(one.mix, one.operations["attention"]) for one in steps]
    curves["decode"] = Curve(
        {mix.decodes: replace(one, name="decode") for mix, one in attention if not mix.prompts}
    )
    curves["prefill"] = Curve(
        {mix.prompts: replace(one, name="prefill") for mix, one in attention if not mix.decodes}
    )
    return curves
