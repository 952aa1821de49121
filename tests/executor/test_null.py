from __future__ import annotations

from camshaft.contracts.executor import Executor
from camshaft.executor.null import NullExecutor
from camshaft.testing.executor import ExecutorContract
from camshaft.testing.steps import StepDriver


class TestContract(ExecutorContract):
    def make(self) -> Executor:
        return NullExecutor()


class TestContractWithoutPacking(ExecutorContract):
    def make(self) -> Executor:
        return NullExecutor(token=7, pack=False)


def test_every_row_gets_the_same_token() -> None:
    drive = StepDriver(NullExecutor(token=7))
    one, other = drive.open([1, 2], 0, [1]), drive.open([3], 1, [2])
    step = drive.launch((one, 2), (other, 1))
    assert drive.outputs[step].tokens.tolist() == [[7], [7]]
