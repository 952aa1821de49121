from __future__ import annotations

import random
import time

import pytest

from camshaft.contracts.model import ModelFacts
from camshaft.contracts.predictor import StepShape
from camshaft.facts import DeviceFacts
from camshaft.plugins.scheduler.components import FittedSettings
from camshaft.plugins.scheduler.fitted import Fitted
from camshaft.testing.predictor import DEVICE, MODEL, StepTimePredictorContract, random_shape

DECODE = StepShape(8, 8, 8, 8000, 8)


class TestContract(StepTimePredictorContract):
    def make(self, device: DeviceFacts, model: ModelFacts) -> Fitted:
        return Fitted(FittedSettings(), device, model)


def law(shape: StepShape) -> float:
    """A step with prompts costs 4 ms more than one without, as where only decodes are recorded."""
    prompts = shape.tokens - shape.decode_tokens
    return 2e-3 + 4e-3 * (prompts > 0) + 3e-5 * prompts + 1e-4 * shape.decode_tokens


def taught(steps: int, outlier_every: int = 0) -> Fitted:
    predictor, chance = Fitted(FittedSettings(), DEVICE, MODEL), random.Random(1)
    for step in range(1, steps + 1):
        shape = random_shape(chance)
        slow = 50.0 if outlier_every and step % outlier_every == 0 else 1.0
        predictor.observe(shape, slow * law(shape))
    return predictor


def worst(predictor: Fitted) -> float:
    """The ninth largest of ten relative errors, on steps that it did not see."""
    chance = random.Random(2)
    shapes = [random_shape(chance) for _ in range(200)]
    return sorted(abs(predictor.predict(one) / law(one) - 1) for one in shapes)[180]


def test_it_begins_with_what_reading_the_weights_takes() -> None:
    # 270 MB at 20 GB/s; one token of 135 M parameters at 100 GFLOP/s (the bfloat16 rate is 400)
    alone = Fitted(FittedSettings(), DEVICE, MODEL).predict(StepShape(1, 1, 1, 1, 0))
    assert alone == pytest.approx(270e6 / 2e10 + 2 * 135e6 / 4e11, rel=0.01)


def test_prompts_cost_more_than_their_tokens_where_only_decodes_are_recorded() -> None:
    predictor = taught(1000)
    assert predictor.predict(StepShape(9, 9, 8, 8000, 9)) > predictor.predict(DECODE) + 3e-3
    assert worst(predictor) < 0.08


def test_steps_that_were_interrupted_change_little() -> None:
    assert worst(taught(1000, outlier_every=50)) < 0.2


def test_what_prompts_cost_is_not_forgotten_while_there_are_none() -> None:
    predictor, chance = taught(1000), random.Random(3)
    prompt = StepShape(9, 520, 8, 9000, 9)
    before = predictor.predict(prompt)
    for _ in range(100_000 // 10):
        decodes = chance.randint(1, 32)
        shape = StepShape(decodes, decodes, decodes, decodes * 1000, decodes)
        predictor.observe(shape, law(shape))
    assert predictor.predict(prompt) == pytest.approx(before, rel=0.1)
    predictor.observe(prompt, 10 * law(prompt))  # and one odd prompt does not throw it over
    assert predictor.predict(prompt) < 2 * before


def test_a_step_of_no_time_tells_nothing() -> None:
    predictor = taught(100)
    before = predictor.predict(DECODE)
    for seconds in (0.0, float("inf"), float("nan")):
        predictor.observe(DECODE, seconds)
    assert predictor.predict(DECODE) == before


def test_predicting_and_learning_take_microseconds() -> None:
    predictor = taught(10)
    times = []
    for _ in range(10):
        start = time.thread_time()
        for _ in range(100):
            predictor.predict(DECODE)
            predictor.observe(DECODE, 0.005)
        times.append((time.thread_time() - start) / 100)
    assert min(times) < 50e-6  # 10 us where nothing else runs
