"""Cache scopes under the real loop, in debug mode: pages become too old between plan and commit."""

from __future__ import annotations

import pytest

from camshaft.contracts.cache import CacheSpec
from camshaft.contracts.scheduler import SchedulerLimits
from camshaft.loop.clock import Clock
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.components import ContinuousSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.request import CacheScope
from camshaft.testing.engines import make_request, model_free_engine, run_to_end


class Hasty(Clock):
    """A second passes each time that it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def now(self) -> float:
        self.seconds += 1.0
        return self.seconds


def scheduler(limits: SchedulerLimits) -> Continuous:
    return Continuous(ContinuousSettings(), limits)


def cache(spec: CacheSpec) -> Paged:
    return Paged(PagedSettings(), spec)


@pytest.mark.parametrize("ttl_s", [1.0, 30.0, 300.0])
def test_requests_end_although_pages_expire_at_any_moment(ttl_s: float) -> None:
    engine = model_free_engine(
        scheduler, cache=cache, pages=24, depth=2, late_steps=2, clock=Hasty()
    )
    for number in range(24):
        scope = CacheScope("n", number // 6, ttl_s)
        prompt = [5] * 21 + [100 + number] * 3
        engine.submit(make_request(f"r{number}", prompt, max_tokens=20, scope=scope))
    results = run_to_end(engine)
    assert {len(one.token_ids) for one in results.values()} == {20}
    assert (engine.stats.cached_tokens > 0) == (ttl_s > 1.0)
    usage = engine.usage()[0]
    assert usage.free + usage.evictable == 24
