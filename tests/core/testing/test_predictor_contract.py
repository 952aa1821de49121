from __future__ import annotations

import time
from typing import ClassVar

import numpy as np
import pytest

from camshaft.contracts.predictor import StepTimePredictor
from camshaft.testing.predictor import StepTimePredictorContract
from camshaft.testing.rejects import failures


class LeastSquares(StepTimePredictor):
    """Linear in all features, fitted to what it saw with slow forgetting."""

    def __init__(self, settings, device, model):
        super().__init__(settings, device, model)
        prior = np.array([1e-2, 1e-6, 1e-5, 1e-6, 1e-10, 1e-6])
        self.scale = np.array([1.0, 10, 100, 10, 10_000, 10])
        self.weights = prior * self.scale
        self.moment = np.eye(6) * 1e-3
        self.target = self.moment @ self.weights
        self.stale = False

    def features(self, shape):
        return np.array([1.0, *shape]) / self.scale

    def predict(self, shape):
        if self.stale:
            self.weights = np.maximum(np.linalg.solve(self.moment, self.target), 0)
            self.stale = False
        return max(1e-6, float(self.features(shape) @ self.weights))

    def observe(self, shape, seconds):
        x = self.features(shape)
        self.moment = 0.998 * self.moment + np.outer(x, x) + np.eye(6) * 1e-9
        self.target = 0.998 * self.target + x * seconds
        self.stale = True


def verdict(predictor: type[StepTimePredictor], *, learns: bool = True) -> list[str]:
    class Contract(StepTimePredictorContract):
        def make(self, device, model) -> StepTimePredictor:
            return predictor(None, device, model)

    Contract.learns = learns
    return failures(Contract)


def test_a_good_predictor_passes() -> None:
    assert verdict(LeastSquares) == []


class Formula(LeastSquares):
    """Ten nanoseconds for each parameter, whatever was observed."""

    def predict(self, shape):
        return 1e-3 + 1e-5 * shape.tokens

    def observe(self, shape, seconds):
        pass


def test_a_fixed_predictor_passes_when_it_says_so() -> None:
    assert verdict(Formula, learns=False) == []
    assert "test_it_learns_a_linear_law" in verdict(Formula)


class LastSeen(LeastSquares):
    """Whatever the last step took."""

    seconds = 1e-3

    def predict(self, shape):
        return self.seconds

    def observe(self, shape, seconds):
        self.seconds = seconds


class Mean(LeastSquares):
    """The mean of all steps so far, whatever their shape."""

    count, total = 0, 0.0

    def predict(self, shape):
        return self.total / self.count if self.count else 1e-3

    def observe(self, shape, seconds):
        self.count += 1
        self.total += seconds


class Unbounded(LeastSquares):
    """Weights may be negative, and so may their sum."""

    def predict(self, shape):
        return float(self.features(shape) @ np.linalg.solve(self.moment, self.target))


class NothingYet(LeastSquares):
    def __init__(self, settings, device, model):
        super().__init__(settings, device, model)
        self.target *= 0
        self.weights *= 0

    def predict(self, shape):
        return (
            float(self.features(shape) @ self.weights) if not self.stale else super().predict(shape)
        )


class BytesOverBandwidth(Formula):
    def predict(self, shape):
        return self.model.weight_bytes / self.device.read_bytes_s + 1e-5 * shape.tokens


class CountsPredictions(LeastSquares):
    calls = 0

    def predict(self, shape):
        self.calls += 1
        return super().predict(shape) * (1 + 0.001 * self.calls)


class Shared(LeastSquares):
    memory: ClassVar[dict[str, tuple[np.ndarray, np.ndarray]]] = {}

    def observe(self, shape, seconds):
        super().observe(shape, seconds)
        self.memory["weights"] = (self.moment, self.target)

    def predict(self, shape):
        self.moment, self.target = self.memory.get("weights", (self.moment, self.target))
        self.stale = True
        return super().predict(shape)


class NeverForgets(LeastSquares):
    """Stops learning after a hundred steps."""

    seen = 0

    def observe(self, shape, seconds):
        self.seen += 1
        if self.seen <= 400:
            super().observe(shape, seconds)


class Backwards(LeastSquares):
    def predict(self, shape):
        return 1.0 / super().predict(shape)


class Divides(LeastSquares):
    """Keeps the speed, not the time."""

    rate = 1e3

    def observe(self, shape, seconds):
        self.rate = shape.tokens / seconds

    def predict(self, shape):
        return shape.tokens / self.rate


class Slow(LeastSquares):
    def predict(self, shape):
        end = time.thread_time() + 300e-6
        while time.thread_time() < end:
            pass
        return super().predict(shape)


@pytest.mark.parametrize(
    ("predictor", "test"),
    [
        (NothingYet, "test_it_answers_before_it_has_seen_anything"),
        (BytesOverBandwidth, "test_it_answers_on_a_device_of_which_little_is_known"),
        (CountsPredictions, "test_predicting_changes_nothing"),
        (Shared, "test_predictors_do_not_share_what_they_learnt"),
        (LastSeen, "test_it_learns_a_linear_law"),
        (Mean, "test_it_learns_a_linear_law"),
        (NeverForgets, "test_it_follows_a_device_that_became_slower"),
        (Backwards, "test_more_work_does_not_take_less_time"),
        (Unbounded, "test_it_survives_odd_observations"),
        (Divides, "test_it_survives_odd_observations"),
        (Slow, "test_an_answer_takes_microseconds"),
    ],
)
def test_a_predictor_that_breaks_a_promise_is_rejected(
    predictor: type[StepTimePredictor], test: str
) -> None:
    assert test in verdict(predictor)
