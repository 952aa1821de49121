"""Random requests with and without modules under the real loop, in debug mode, on few pages."""

from __future__ import annotations

import random
from typing import Any

import pytest

from camshaft.component import Chosen, Component, Settings
from camshaft.contracts.cache import CacheSpec
from camshaft.contracts.scheduler import SchedulerLimits
from camshaft.loop.engine import Engine
from camshaft.loop.modules import Modules
from camshaft.plugins.cache.components import (
    ModularSettings,
    TokenTableSettings,
    camshaft_components,
)
from camshaft.plugins.cache.modular.manager import Modular
from camshaft.plugins.cache.token_table.run_table import RunTable
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.request import Request, TokenSpan
from camshaft.testing.engines import make_request, model_free_engine
from tests.pressure import press

CATALOGUE = {one.name: one for one in camshaft_components() if one.kind == "cache"}


def scheduler(limits: SchedulerLimits) -> Continuous:
    return Continuous(ContinuousSettings(), limits)


def engine(below: str, pages: int, late: int) -> Engine:
    component = CATALOGUE[below]
    settings: Settings = component.settings()
    if below == "token_table":  # the manager behind it takes any page
        component = Component("cache", below, f"{RunTable.__module__}:RunTable", component.settings)
        settings = TokenTableSettings(expected_share=0.0)

    def cache(spec: CacheSpec) -> Modular:
        return Modular(ModularSettings(over=Chosen(component, settings)), spec)

    return model_free_engine(
        scheduler, cache=cache, pages=pages, room=400, depth=late, late_steps=late
    )


def requests(count: int, seed: int) -> list[Request]:
    chance = random.Random(seed)
    modules = [
        TokenSpan([chance.randrange(3, 1000) for _ in range(length)], position)
        for position, length in ((0, 8), (8, 12), (20, 4), (40, 16), (60, 8))
    ]
    made = []
    for number in range(count):
        own = [chance.randrange(3, 1000) for _ in range(chance.randint(1, 20))]
        salt = chance.choice(["", "", "a"])
        request = make_request(f"r{number}", own, chance.randint(1, 30), ignore_eos=True, salt=salt)
        chosen = sorted(chance.sample(range(5), chance.choice([0, 1, 2, 4])))
        request.spans = (*(modules[one] for one in chosen), *request.spans)
        made.append(request)
    return made


@pytest.mark.parametrize("late", [0, 2])
@pytest.mark.parametrize("below", ["paged", "radix", "token_table"])
def test_random_requests_end_and_everything_comes_back(
    below: str, late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[str] = []
    lacking = Modules.lacking

    def counted(self: Modules, state: Any) -> list[Request]:
        new = lacking(self, state)
        computed.extend(one.id for one in new)
        return new

    monkeypatch.setattr(Modules, "lacking", counted)
    work, made = requests(120, late), engine(below, 40, late)
    outcome = press(made, work, late)
    assert set(outcome.results) == {one.id for one in work}
    for one in work:
        wanted = ("length", one.params.max_tokens)
        found = outcome.results[one.id]
        if one.id not in outcome.aborted:
            assert (found.finish, len(found.token_ids)) == wanted, found.message
    usage = made.usage()[0]
    assert (usage.in_use, usage.pinned) == (0, 0)
    assert made.parts.cache.check_integrity() == []
    assert not made.parts.cache.requests  # type: ignore[attr-defined]
    assert made.stats.evictions["space"] > 0
    assert len(set(computed)) == 10  # five modules, two salts
    assert len(computed) < 2 * len(work)  # where there is no room, they are not computed in vain
