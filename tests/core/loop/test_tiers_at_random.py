"""Random use of an engine whose cache brings pages late, in part or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from camshaft.contracts.cache import CacheSpec, KVManager
from camshaft.executor.late import LateExecutor
from camshaft.loop.engine import Engine
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, model_free_engine
from camshaft.testing.host_tier import Fate, HostTier
from camshaft.testing.toy import compose_toy, pool

TEXTS = [[7] * 24, [7] * 9 + [8] * 15, [9] * 24]
FATE = st.builds(Fate, st.integers(1, 5), st.sampled_from([99, 99, 2, 0]))
ACTION = st.one_of(
    st.tuples(st.just("submit"), st.integers(0, 2), st.integers(1, 24), st.integers(1, 12)),
    st.tuples(st.just("turns"), st.integers(1, 6)),
    st.tuples(st.just("abort"), st.integers(0, 7)),
)
SETTINGS = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def play(engine: Engine, actions: list[Any]) -> dict[str, RequestOutput]:
    """Do what is asked, then run to the end; the engine checks its books in every turn."""
    outputs: dict[str, RequestOutput] = {}
    names: list[str] = []
    for kind, *details in actions:
        if kind == "submit":
            text, length, most = details
            names.append(f"r{len(names)}")
            engine.submit(make_request(names[-1], TEXTS[text][:length], most, ignore_eos=True))
        elif kind == "turns":
            for _ in range(details[0]):
                collect(engine.step(), outputs)
        elif names:
            engine.abort(names[details[0] % len(names)])
    for _ in range(2000):
        if not engine.has_work:
            break
        collect(engine.step(), outputs)
    assert not engine.has_work, "it does not come to an end"
    assert {one.finish for one in outputs.values()} <= {"length", "abort"}
    assert len(outputs) == len(names)
    return outputs


@seed(1)
@settings(SETTINGS, max_examples=60)
@given(
    pages=st.integers(10, 24),
    late=st.integers(0, 2),
    running=st.integers(1, 4),
    actions=st.lists(ACTION, min_size=8, max_size=40),
    fates=st.lists(FATE, min_size=1, max_size=12),
)
def test_every_request_ends_and_no_page_is_lost(
    pages: int, late: int, running: int, actions: list[Any], fates: list[Fate]
) -> None:
    engine = model_free_engine(
        lambda limits: Continuous(ContinuousSettings(), limits),
        cache=lambda spec: HostTier(spec, _again(fates)),
        pages=pages,
        max_running=running,
        late_steps=late,
        depth=max(1, late),
    )
    play(engine, actions)
    assert engine.usage()[0].free == pages


def _again(fates: list[Fate]) -> Any:
    rest: list[Fate] = []

    def fate() -> Fate:
        rest[:] = rest or list(fates)
        return rest.pop(0)

    return fate


def toy(cache: Callable[[CacheSpec], KVManager] | None, pages: int = 14, late: int = 0) -> Engine:
    """A toy whose fresh pages are poisoned, around the paged cache or another one."""
    changes: dict[str, dict[str, Any]] = {
        "cache": {"memory": pool(pages), "prefix": False},
        "engine": {"poison": True},
        "scheduler": {"max_running": 3},
    }
    parts = compose_toy(changes=changes).engine.parts
    if cache is None:
        return Engine(parts)
    spec: CacheSpec = replace(parts.cache.spec, prefix=True)  # type: ignore[attr-defined]
    executor = LateExecutor(parts.executor, late) if late else parts.executor
    spec = replace(spec, tray=executor.tray)
    return Engine(replace(parts, cache=cache(spec), executor=executor, depth=max(1, late)))


@pytest.mark.parametrize("late", [0, 2])
def test_answers_do_not_notice_where_their_pages_were(late: int) -> None:
    chance = random.Random(late)
    fates = [Fate(chance.randint(1, 5), chance.choice([99, 99, 2])) for _ in range(9)]
    actions: list[Any] = []
    for number in range(16):
        length, most = chance.randint(8, 24), chance.randint(2, 12)
        actions.append(("submit", chance.randrange(3), length, most))
        actions.append(("abort", number) if chance.random() < 0.2 else ("turns", 3))
    engine = toy(lambda spec: HostTier(spec, _again(fates)), late=late)
    got = play(engine, actions)
    wanted = play(toy(None, pages=200), [one for one in actions if one[0] == "submit"])
    assert engine.cache_counters()["loaded_pages"] > 10
    for name, output in got.items():
        if output.finish == "length":
            assert output.token_ids == wanted[name].token_ids, name
