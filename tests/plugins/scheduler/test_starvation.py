"""Whoever comes to an overloaded engine is served in a bounded time, whoever comes later."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.loop.clock import VirtualClock
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, model_free_engine
from tests.plugins.scheduler.configurations import CONFIGURATIONS, scheduler

HOT = list(range(8))
"""Two pages that the cache always holds."""


def engine_for(name: str, clock: VirtualClock, *, pages: int = 24, depth: int = 1) -> Engine:
    return model_free_engine(
        functools.partial(scheduler, name),
        clock=clock,
        pages=pages,
        page_tokens=4,
        step_tokens=16,
        max_running=3,
        depth=depth,
        late_steps=depth,
        cache=lambda spec: Paged(PagedSettings(), spec),
    )


def more_attractive(engine: Engine, chance: random.Random, number: int) -> None:
    """Ask for something short, hot, and of a tenant that got little."""
    request = make_request(f"r{number}", [*HOT, number % 900], chance.randint(2, 6))
    request.tenant = f"t{number % 5}"
    engine.submit(request)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_stream_that_is_always_preferred_does_not_starve_anybody(name: str, seed: int) -> None:
    chance, clock = random.Random(seed), VirtualClock(start=1.0)
    engine, results = engine_for(name, clock), dict[str, RequestOutput]()
    for turn in range(250):
        for place in range(chance.randint(1, 2)):  # about twice what the engine can do
            more_attractive(engine, chance, 2 * turn + place)
        if turn == 20:
            long = [900 + place for place in range(40)]
            engine.submit(make_request("plain", long, 10, tenant="t0", priority=1))
        collect(engine.step(), results)
        clock.advance_to(clock.now() + 1.0)
    assert len(engine.view.waiting) > 50
    assert results["plain"].finish == "length"
    assert len(results["plain"].token_ids) == 10


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 3),  # turns since the one before
        st.integers(1, 40),  # tokens of the prompt
        st.integers(1, 12),  # tokens of the answer
        st.sampled_from(["t0", "t1"]),
        st.booleans(),  # begins like others
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize("name", CONFIGURATIONS)
@settings(max_examples=12)
@given(arrivals=ARRIVALS, pages=st.sampled_from([14, 40]), depth=st.integers(0, 2))
def test_whatever_comes_ends_once_with_all_its_tokens(
    name: str, arrivals: list[tuple[int, int, int, str, bool]], pages: int, depth: int
) -> None:
    """The engine refuses a plan beyond its budget, its free slots or what is pending."""
    clock = VirtualClock(start=1.0)
    engine, results = engine_for(name, clock, pages=pages, depth=depth), dict[str, RequestOutput]()
    for number, (gap, length, outputs, tenant, hot) in enumerate(arrivals):
        for _ in range(gap):
            collect(engine.step(), results)
            clock.advance_to(clock.now() + 1.0)
        own = [100 * number % 900 + place for place in range(length)]
        prompt = [*HOT, *own][:length] if hot else own
        engine.submit(make_request(f"r{number}", prompt, outputs, tenant=tenant))
    for _ in range(2000):
        if not engine.has_work:
            break
        collect(engine.step(), results)
        clock.advance_to(clock.now() + 1.0)
    ends = {one: (result.finish, len(result.token_ids)) for one, result in results.items()}
    assert ends == {
        f"r{number}": ("length", outputs) for number, (_, _, outputs, _, _) in enumerate(arrivals)
    }
