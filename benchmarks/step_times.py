"""How long steps take on this machine, as a formula; and an executor that takes that long.

The formula is linear in what drives a step. It is fitted to steps of the real engine, so that runs
in virtual time stand for runs on the machine and take a hundredth of their time.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from camshaft import open_recipe
from camshaft.compose import compose
from camshaft.contracts.predictor import StepShape, StepTimePredictor
from camshaft.executor.null import NullExecutor
from camshaft.testing.engines import make_request
from camshaft.testing.timed import TimedExecutor

if TYPE_CHECKING:
    from camshaft.loop.clock import VirtualClock
    from camshaft.loop.engine import Engine


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds of a step.

    Attributes:
        step: Whatever is in it.
        token: For each token.
        context: For each token that is attended to by a request, summed over requests.
        row: For each row of logits.
    """

    step: float
    token: float
    context: float
    row: float

    def seconds(self, shape: StepShape) -> float:
        """Return how long a step takes."""
        return float(np.dot(astuple(self), _drivers(shape)))


def _drivers(shape: StepShape) -> tuple[float, ...]:
    return 1.0, shape.tokens, shape.context, shape.logits_rows


class Recorder(StepTimePredictor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.seen: list[tuple[StepShape, float]] = []

    def predict(self, shape: StepShape) -> float:
        """Return some time: nobody asks."""
        return 1.0

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Keep it."""
        self.seen.append((shape, seconds))


def fit(seen: list[tuple[StepShape, float]]) -> StepModel:
    """Fit the formula to steps by their relative errors; no part of it is negative."""
    drivers = np.array([_drivers(shape) for shape, _ in seen])
    seconds = np.array([one for _, one in seen])
    rows, wanted = drivers / seconds[:, None], np.ones(len(seen))
    active = list(range(drivers.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(rows[:, active], wanted, rcond=None)
        if (found >= 0).all():
            break
        active.pop(int(found.argmin()))
    whole = np.zeros(drivers.shape[1])
    whole[active] = found
    return StepModel(*whole.tolist())


def measure(recipe: str, *overrides: str) -> tuple[StepModel, float]:
    """Run steps of all kinds on the real engine.

    Returns:
        The formula, and its mean relative error on the steps that it was fitted to.
    """
    settings = ("engine.depth=0", "scheduler.step_tokens=512", "cache.prefix=false", *overrides)
    engine = compose(open_recipe(recipe, settings)).engine
    recorder = engine.parts.predictor = Recorder()
    for requests, prompt in ((1, 16), (1, 500), (4, 64), (8, 256), (16, 32), (24, 128), (32, 16)):
        _decode(engine, requests, prompt)
    for tokens in (8, 24, 48, 96, 192, 384):
        _decode(engine, 1, tokens, outputs=2, repeats=3)
        _mix(engine, tokens)
    engine.close()
    middle = _medians(recorder.seen)
    model = fit(middle)
    errors = [abs(model.seconds(shape) / seconds - 1) for shape, seconds in middle]
    return model, statistics.mean(errors)


def _decode(
    engine: Engine, requests: int, prompt: int, *, outputs: int = 8, repeats: int = 1
) -> None:
    for repeat in range(repeats):
        for number in range(requests):
            ids = [(7 * number + place + repeat) % 40_000 + 100 for place in range(prompt)]
            engine.submit(make_request(f"d{number}", ids, outputs, ignore_eos=True))
        while engine.has_work:
            engine.step()


def _mix(engine: Engine, tokens: int) -> None:
    """Let a prompt of so many tokens join eight decodes."""
    for number in range(8):
        ids = [number * 50 + place + 100 for place in range(40)]
        engine.submit(make_request(f"m{number}", ids, 8, ignore_eos=True))
    engine.step()
    for number in range(2):
        engine.step()
        engine.submit(make_request(f"p{number}", range(100, 100 + tokens), 1, ignore_eos=True))
    while engine.has_work:
        engine.step()


def _medians(seen: list[tuple[StepShape, float]]) -> list[tuple[StepShape, float]]:
    """Return the middle time of steps that hold the same; their context grows a little."""
    alike: dict[tuple[int, int], list[tuple[StepShape, float]]] = defaultdict(list)
    for shape, seconds in seen:
        alike[shape.tokens, shape.context // 256].append((shape, seconds))
    return [
        (group[len(group) // 2][0], statistics.median(seconds for _, seconds in group))
        for group in alike.values()
    ]


def timed_executor(clock: VirtualClock, model: StepModel) -> TimedExecutor:
    """Return one that computes nothing, and takes as long as a formula says, in virtual time."""
    return TimedExecutor(NullExecutor(token=1000, pack=False), clock, model.seconds)
