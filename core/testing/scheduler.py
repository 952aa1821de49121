"""The contract of schedulers, as tests to inherit."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from ..contracts.scheduler import Scheduler, SchedulerLimits
from .engines import collect, make_request, model_free_engine, run_to_end

if TYPE_CHECKING:
    from ..loop.engine import Engine
    from ..request import RequestOutput


class SchedulerContract:
    """Subclass it, define `make`, and run pytest.

    The engine around the scheduler is real and checks the rules of `Scheduler` on every plan:
    ready requests, no repeats, tokens within pending and budget, admissions within free slots.
    """

    def make(self, limits: SchedulerLimits) -> Scheduler:
        """Return the scheduler under test."""
        raise NotImplementedError

    def run(self, engine: Engine, prompts: list[int], outputs: int = 6) -> dict[str, RequestOutput]:
        """Run requests with prompts of these lengths."""
        for number, length in enumerate(prompts):
            engine.submit(make_request(f"r{number}", [5] * length, outputs))
        return run_to_end(engine)

    def test_every_request_ends_with_all_its_tokens(self) -> None:
        """In a roomy pool."""
        results = self.run(model_free_engine(self.make, pages=200), [1, 3, 30, 31, 32, 33, 64, 2])
        assert {one.finish for one in results.values()} == {"length"}
        assert {len(one.token_ids) for one in results.values()} == {6}

    @pytest.mark.parametrize("depth", [0, 1, 2])
    def test_every_request_ends_when_pages_are_short(self, depth: int) -> None:
        """With more requests than pages, at any depth of overlap."""
        engine = model_free_engine(self.make, pages=12, depth=depth, late_steps=depth)
        results = self.run(engine, [10, 20, 17, 3, 8, 30, 12, 5, 9, 26], outputs=14)
        assert len(results) == 10
        assert {len(one.token_ids) for one in results.values()} == {14}

    def test_pages_that_run_out_are_found_by_preemption(self) -> None:
        """Not by waiting for ever: requests that grow together must give way to each other."""
        engine = model_free_engine(self.make, pages=8, page_tokens=4, max_running=4)
        results = self.run(engine, [4, 4, 4, 4], outputs=20)
        assert {len(one.token_ids) for one in results.values()} == {20}

    def test_a_prompt_longer_than_the_budget_is_cut(self) -> None:
        """A step holds at most `step_tokens`."""
        engine = model_free_engine(self.make, pages=100, step_tokens=8)
        results = self.run(engine, [61, 5])
        assert {len(one.token_ids) for one in results.values()} == {6}
        assert engine.stats.steps >= 8

    def test_one_slot_serves_all_in_turn(self) -> None:
        """Slots, not pages, are the limit."""
        results = self.run(model_free_engine(self.make, max_running=1), [4] * 5)
        assert len(results) == 5

    def test_a_budget_of_one_token_is_enough(self) -> None:
        """The smallest step there is."""
        engine = model_free_engine(self.make, step_tokens=1, max_running=3)
        assert len(self.run(engine, [3, 4, 5], outputs=3)) == 3

    def test_planning_changes_nothing(self) -> None:
        """A plan that is asked for twice leaves queues and counts alone."""
        engine = model_free_engine(self.make)
        for number in range(5):
            engine.submit(make_request(f"r{number}", [5] * 9))
        engine.step()
        before = [(s.uid, s.computed, s.known, s.status) for s in engine.states.values()]
        engine.parts.scheduler.plan(engine.view)
        after = [(s.uid, s.computed, s.known, s.status) for s in engine.states.values()]
        assert before == after
        run_to_end(engine)

    @pytest.mark.parametrize("seed", range(6))
    def test_random_arrivals_and_aborts_lose_nobody(self, seed: int) -> None:
        """Any interleaving: each request ends exactly once, and all pages come back."""
        chance = random.Random(seed)
        engine = model_free_engine(
            self.make,
            pages=chance.choice([16, 40]),
            step_tokens=chance.choice([4, 16, 64]),
            max_running=chance.choice([2, 5]),
            depth=chance.choice([0, 1, 2]),
        )
        results: dict[str, RequestOutput] = {}
        for number in range(40):
            length = chance.randint(1, 40)
            priority = chance.randint(0, 3)
            request = make_request(f"r{number}", [5] * length, chance.randint(1, 12))
            request.priority = priority
            engine.submit(request)
            for _ in range(chance.randint(0, 3)):
                collect(engine.step(), results)
            if chance.random() < 0.3:
                engine.abort(f"r{chance.randint(0, number)}")
        for name, one in run_to_end(engine).items():
            collect([one], results) if name not in results else _merge(results[name], one)
        assert len(results) == 40
        assert all(one.finish for one in results.values())
        usage = engine.usage()[0]
        assert (usage.in_use, usage.pinned) == (0, 0)


def _merge(known: RequestOutput, more: RequestOutput) -> None:
    known.token_ids = known.token_ids + more.token_ids
    known.finish = more.finish
