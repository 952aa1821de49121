"""The team of threads: more of them than cores, so that some always come late."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from camshaft import native
from camshaft.native.arena import Arena
from camshaft.native.linear import Form, PackedWeight, linear, pack
from camshaft.native.rows import SILU, gate, rms_norm
from camshaft.native.tape import record

pytestmark = pytest.mark.skipif(not native.expected(), reason="no compiled operations here")

WIDTH = 96


@pytest.fixture(autouse=True)
def team_of_one() -> Iterator[None]:
    yield
    native.close_team()


def weight(outputs: int, inputs: int) -> PackedWeight:
    quants = torch.randint(0, 16, (outputs, inputs), dtype=torch.uint8)
    scales = torch.rand(outputs, inputs // 32) * 0.2
    return pack(Form(4, 32, is_wide=True), quants, scales, scales * -8)


class Chain:
    """Layers of operations that each read what the one before has just filled."""

    def __init__(self, rows: int, layers: int) -> None:
        self.x = torch.randn(rows, WIDTH)
        self.norm = torch.rand(WIDTH)
        self.weights = [(weight(2 * WIDTH, WIDTH), weight(WIDTH, WIDTH)) for _ in range(layers)]

    def run(self) -> tuple[torch.Tensor]:
        hidden = self.x.clone()
        for up, down in self.weights:
            normed, both = torch.empty_like(hidden), hidden.new_empty(len(hidden), 2 * WIDTH)
            activated, back = torch.empty_like(hidden), torch.empty_like(hidden)
            rms_norm(hidden, None, self.norm, 1e-5, normed)
            linear(normed, up, None, both)
            gate(both, SILU, activated)
            linear(activated, down, None, back)
            hidden = back
        return (hidden,)


@pytest.mark.parametrize("spins", [0, 50, 5000])
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_who_comes_late_changes_nothing(rows: int, spins: int) -> None:
    chain = Chain(rows, layers=12)
    (expected,) = chain.run()
    native.open_team(7, spins=spins)
    assert torch.equal(chain.run()[0], expected)
    recorded = record(chain.run, Arena())
    for turn in range(40):
        chain.x.mul_(-1)
        (found,) = recorded.replay()
        assert found is not None
        if turn % 2:
            assert torch.equal(found, expected)
        else:
            assert not torch.equal(found, expected)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_recording_goes_on_beside_its_caller(threads: int) -> None:
    chain, other = Chain(5, layers=12), Chain(9, layers=2)
    (expected,), (different,) = chain.run(), other.run()
    native.open_team(threads, spins=50)
    recorded = record(chain.run, Arena())
    for turn in range(30):
        end = recorded.begin()
        if turn % 3 == 1:
            time.sleep(0.002)
        if turn % 3 == 2:  # what is called meanwhile waits for it
            assert torch.equal(other.run()[0], different)
        (found,) = end()
        assert found is not None
        assert torch.equal(found, expected)


def test_a_recording_that_runs_ends_before_its_team_and_its_tape_do() -> None:
    chain = Chain(5, layers=12)
    (expected,) = chain.run()
    native.open_team(3, spins=50)
    recorded = record(chain.run, Arena())
    for threads in (2, 4, 1):
        end = recorded.begin()
        native.open_team(threads, spins=50)
        (found,) = end()
        assert found is not None
        assert torch.equal(found, expected)
    end = recorded.begin()
    del recorded, end
    assert torch.equal(chain.run()[0], expected)


def test_teams_come_and_go() -> None:
    chain = Chain(5, layers=3)
    (expected,) = chain.run()
    for threads in (2, 5, 1, 3):
        native.open_team(threads, spins=100)
        assert native.team_size() == threads
        assert torch.equal(chain.run()[0], expected)
    native.close_team()
    assert torch.equal(chain.run()[0], expected)
