from __future__ import annotations

from camshaft.contracts.executor import Executor
from camshaft.executor.late import LateExecutor
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
