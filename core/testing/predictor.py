"""The contract of step-time predictors, as tests to inherit."""

from __future__ import annotations

import math
import random
import time
from typing import TYPE_CHECKING

import pytest

from ..contracts.model import ModelFacts
from ..contracts.predictor import StepShape, StepTimePredictor
from ..facts import DeviceFacts

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = DeviceFacts(
    "cpu",
    "test",
    2**34,
    frozenset({"float32", "bfloat16"}),
    threads=2,
    read_bytes_s=2e10,
    flops={"float32": 1e11, "bfloat16": 4e11},
)
MODEL = ModelFacts(
    name="toy",
    layers=30,
    hidden=576,
    vocab=49152,
    parameters=135_000_000,
    weight_bytes=270_000_000,
    max_context=8192,
)

SHAPES = [
    StepShape(1, 1, 1, 1, 1),
    StepShape(1, 2048, 0, 2048, 1),
    StepShape(1, 512, 0, 512, 0),
    StepShape(64, 64, 64, 64 * 4000, 64),
    StepShape(40, 2048, 39, 50_000, 40),
    StepShape(256, 256 * 5, 0, 2**21, 256 * 5),
]
"""From the smallest step to larger ones than anybody runs."""


def linear_law(shape: StepShape) -> float:
    """Return seconds: a fixed cost, and one for each token, context token and row of logits."""
    return 2e-3 + 4e-5 * shape.tokens + 3e-8 * shape.context + 1e-4 * shape.logits_rows


def random_shape(chance: random.Random) -> StepShape:
    """Return a step of a busy engine: some requests decode, some prompts are cut to fit."""
    decodes = chance.randint(0, 32)
    prompts = chance.randint(0 if decodes else 1, 3)
    chunks = [chance.randint(16, 512) for _ in range(prompts)]
    tokens = decodes + sum(chunks)
    context = sum(chance.randint(10, 4000) for _ in range(decodes)) + 2 * sum(chunks)
    return StepShape(decodes + prompts, tokens, decodes, context, decodes + prompts)


class StepTimePredictorContract:
    """Subclass it, define `make`, and run pytest.

    Attributes:
        learns: It learns from `observe`. One that is fixed, by a formula or a table, is still asked
            for sane answers.
    """

    learns: bool = True

    def make(self, device: DeviceFacts, model: ModelFacts) -> StepTimePredictor:
        """Return the predictor under test."""
        raise NotImplementedError

    def new(self) -> StepTimePredictor:
        """Return one for a small model on a small device."""
        return self.make(DEVICE, MODEL)

    def taught(self, law: Callable[[StepShape], float], steps: int = 400) -> StepTimePredictor:
        """Return one that has seen random steps that take what `law` says, give or take 3 %."""
        predictor, chance = self.new(), random.Random(1)
        for _ in range(steps):
            shape = random_shape(chance)
            predictor.observe(shape, law(shape) * chance.uniform(0.97, 1.03))
        return predictor

    def test_it_answers_before_it_has_seen_anything(self) -> None:
        """Seconds above 0 and finite, for every shape."""
        predictor = self.new()
        for shape in SHAPES:
            _check(predictor, shape)

    def test_it_answers_on_a_device_of_which_little_is_known(self) -> None:
        """Bandwidth 0 and no FLOP/s mean unknown, not infinitely slow."""
        predictor = self.make(DeviceFacts("cpu", "test", 2**30, frozenset({"float32"})), MODEL)
        for shape in SHAPES:
            _check(predictor, shape)

    def test_predicting_changes_nothing(self) -> None:
        """The same shape has the same answer until something is observed."""
        predictor = self.taught(linear_law, 50)
        first = [predictor.predict(shape) for shape in SHAPES]
        again = [predictor.predict(shape) for shape in reversed(SHAPES)][::-1]
        assert first == again

    def test_predictors_do_not_share_what_they_learnt(self) -> None:
        """Two engines run in one process."""
        one = self.new()
        before = [one.predict(shape) for shape in SHAPES]
        self.taught(lambda shape: 50 * linear_law(shape), 50)
        assert [one.predict(shape) for shape in SHAPES] == before

    def test_it_learns_a_linear_law(self) -> None:
        """Nine of ten steps that it never saw are predicted within 20 %."""
        self._need_learning()
        predictor, chance = self.taught(linear_law), random.Random(2)
        errors = []
        for _ in range(100):
            shape = random_shape(chance)
            errors.append(abs(_check(predictor, shape) / linear_law(shape) - 1))
        errors.sort()
        assert errors[89] < 0.2, f"median error {errors[49]:.0%}, ninth of ten {errors[89]:.0%}"

    def test_it_follows_a_device_that_became_slower(self) -> None:
        """Enough new steps outweigh the old ones: predictions move most of the way."""
        self._need_learning()
        predictor, chance = self.taught(linear_law), random.Random(3)
        shape = StepShape(16, 16, 16, 16 * 1000, 16)
        before = predictor.predict(shape)
        for _ in range(2000):
            seen = random_shape(chance)
            predictor.observe(seen, 3 * linear_law(seen))
        assert predictor.predict(shape) > 2 * before

    def test_more_work_does_not_take_less_time(self) -> None:
        """After it has learnt; up to 5 % of noise."""
        predictor = self.taught(linear_law)
        for count in (1, 4, 16):
            few = StepShape(count, count, count, count * 500, count)
            many = StepShape(2 * count, 2 * count, 2 * count, 2 * count * 500, 2 * count)
            assert predictor.predict(many) > 0.95 * predictor.predict(few)
        chunks = [
            predictor.predict(StepShape(1, tokens, 0, tokens, 1)) for tokens in (64, 256, 1024)
        ]
        assert chunks[2] > 0.95 * chunks[1] > 0.9 * chunks[0]

    @pytest.mark.parametrize("seconds", [0.0, 1e-9, 100.0])
    def test_it_survives_odd_observations(self, seconds: float) -> None:
        """A stopped clock in virtual time, or a machine that slept: answers stay finite."""
        predictor = self.taught(linear_law, 50)
        for shape in SHAPES:
            predictor.observe(shape, seconds)
        for shape in SHAPES:
            _check(predictor, shape)

    def test_it_survives_seeing_one_shape_only(self) -> None:
        """A benchmark does that; there is no law to be had from it, but that shape's time."""
        predictor, shape = self.new(), StepShape(8, 8, 8, 8000, 8)
        for _ in range(500):
            predictor.observe(shape, 0.01)
        for other in SHAPES:
            _check(predictor, other)
        if self.learns:
            assert predictor.predict(shape) == pytest.approx(0.01, rel=0.2)

    def test_an_answer_takes_microseconds(self) -> None:
        """It is asked several times a step; the bound, 100 us, is for slow machines."""
        predictor = self.taught(linear_law, 50)
        times = []
        for _ in range(5):
            start = time.thread_time()
            for _ in range(200):
                predictor.predict(SHAPES[4])
            times.append((time.thread_time() - start) / 200)
        assert min(times) < 100e-6, f"{min(times) * 1e6:.0f} us"

    def _need_learning(self) -> None:
        if not self.learns:
            pytest.skip("this predictor is fixed")


def _check(predictor: StepTimePredictor, shape: StepShape) -> float:
    seconds = predictor.predict(shape)
    assert math.isfinite(seconds), f"{seconds} s for {shape}"
    assert seconds > 0, f"{seconds} s for {shape}"
    return seconds
