from __future__ import annotations

import pytest

from camshaft.contracts.executor import Executor
from camshaft.executor.late import LateExecutor
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.executor import PROMPT, ComputingExecutorContract
from camshaft.testing.toy import VOCAB, compose_toy


class TestContract(ComputingExecutorContract):
    vocab = VOCAB

    def make(self) -> Executor:
        return compose_toy().engine.parts.executor

    def test_the_toy_says_different_things_to_different_prompts(self) -> None:
        """Or all comparisons of tokens would be in vain."""
        prompts = [PROMPT, PROMPT[::-1], PROMPT[1:], [7]]
        answers = [tuple(self.alone(prompt)) for prompt in prompts]
        assert len(set(answers)) == 4


def test_a_choice_that_fails_ends_its_requests_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = compose_toy().engine
    executor = engine.parts.executor
    assert isinstance(executor, TorchExecutor)

    def fail(*given: object) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken:
        for way in ("sample", "record"):  # eager, and in the form that can be recorded
            broken.setattr(executor.parts.sampler, way, fail)
        engine.submit(make_request("a", [1, 2, 3], 4))
        assert run_to_end(engine)["a"].finish == "error"
    assert executor._flights == {}
    engine.submit(make_request("b", [1, 2, 3], 4, ignore_eos=True))
    assert len(run_to_end(engine)["b"].token_ids) == 4


class TestContractOnPoisonedPages(ComputingExecutorContract):
    vocab = VOCAB

    def make(self) -> Executor:
        return compose_toy(
            changes={"engine": {"poison": True, "deterministic": True}}
        ).engine.parts.executor


class TestContractTwoStepsLate(ComputingExecutorContract):
    vocab = VOCAB
    depth = 2

    def make(self) -> Executor:
        return LateExecutor(compose_toy().engine.parts.executor, 2)
