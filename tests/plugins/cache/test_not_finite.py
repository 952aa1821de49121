"""Logits that are not finite of a request that has lost its pages: nobody finds what it wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from camshaft.contracts.cache import CacheSpec, KVManager
from camshaft.executor.null import NullExecutor
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import (
    ModularSettings,
    PagedSettings,
    RadixSettings,
    TokenTableSettings,
)
from camshaft.plugins.cache.modular.manager import Modular
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.cache.radix.manager import Radix
from camshaft.plugins.cache.token_table.run_table import RunTable
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.step import Step
from camshaft.testing.cache_machine import TieredCacheMachine
from camshaft.testing.engines import make_request, model_free_engine, run_to_end
from camshaft.testing.eviction import LeastRecent
from tests.plugins.cache.tiers import chosen, tiered

PROMPT = list(range(100, 140))

MANAGERS: dict[str, Callable[[CacheSpec], KVManager]] = {
    "paged": lambda spec: Paged(PagedSettings(), spec),
    "radix": lambda spec: Radix(RadixSettings(), spec),
    "token_table": lambda spec: RunTable(TokenTableSettings(), spec),
    "tiered": tiered,
    "tiered over radix": lambda spec: tiered(spec, over="radix"),
    "modular": lambda spec: Modular(ModularSettings(over=chosen("cache", "paged")), spec),
}


class Wrong(NullExecutor):
    """Reports logits that are not finite for everybody in step `wrong`."""

    wrong = 0

    def launch(self, step: Step) -> None:
        super().launch(step)
        if step.id == self.wrong:
            self._steps[step.id].finite = step.slots < 0


def engine_of(manager: str) -> tuple[Engine, Wrong]:
    executor = Wrong(token=7)
    engine = model_free_engine(
        lambda limits: Continuous(ContinuousSettings(), limits),
        cache=MANAGERS[manager],
        executor=executor,
        step_tokens=16,
        late_steps=2,
        depth=2,
    )
    return engine, executor


def preempt(engine: Engine, name: str) -> None:
    engine.committer.preempt(engine.states[name], "test")


LOSSES: dict[str, Callable[[Engine, str], None]] = {"preempted": preempt, "aborted": Engine.abort}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("manager", MANAGERS)
def test_what_it_wrote_is_found_by_nobody(manager: str, loss: str) -> None:
    engine, executor = engine_of(manager)
    executor.wrong = 3  # of the 3 that compute the prompt the one that has logits
    engine.submit(make_request("a", PROMPT))
    for _ in range(3):
        engine.step()
    assert len(engine.flying) > 0
    LOSSES[loss](engine, "a")
    results = run_to_end(engine)
    assert results["a"].finish == ("error" if loss == "preempted" else "abort")
    engine.submit(make_request("b", [*PROMPT, 1], 1))
    assert run_to_end(engine)["b"].cached_tokens == 0


@pytest.mark.parametrize("manager", MANAGERS)
def test_what_others_wrote_stays(manager: str) -> None:
    engine, executor = engine_of(manager)
    engine.submit(make_request("before", PROMPT[:20], 1))
    run_to_end(engine)
    executor.wrong = engine.committer.newest_step + 2
    engine.submit(make_request("a", PROMPT))
    for _ in range(2):
        engine.step()
    preempt(engine, "a")
    assert run_to_end(engine)["a"].finish == "error"
    engine.submit(make_request("b", [*PROMPT, 1], 1))
    assert run_to_end(engine)["b"].cached_tokens == 20


@pytest.mark.parametrize("over", ["paged", "radix"])
def test_a_fork_inside_a_unit_gets_nothing_back_that_its_parent_wrote(over: str) -> None:
    """Pages have two tokens and units four: they share a page of units with other names."""
    machine = TieredCacheMachine(
        lambda spec: tiered(spec, over=over), ("full",), Counter(), LeastRecent, expires=False
    )
    machine.start(page_tokens=2, windows=(0,), pages=8, prefix=True, scoped=False)
    machine.arrive(text=[7] * 16, length=3, tail=[7], salt="", adapter=0, priority=0, scope=0)
    machine.turn(chunks=[4], token=7)
    machine.settle()
    machine.fork(pick=0, back=1, token=8)
    machine.speculate(pick=1, drafts=1, accepted=0)
    machine.idle_turn()
    machine.settle()
    machine.end(pick=0, hold=False, forget=True)
    machine.preempt(pick=0)
    machine.turn(chunks=[1, 1], token=7)
    machine.the_books_balance()
    assert [one.uid for one in machine.core.open] == [2]
