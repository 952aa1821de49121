"""The contract that every scheduler keeps, and what is special about this one."""

from __future__ import annotations

from camshaft_shortest_first.components import ShortestFirstSettings
from camshaft_shortest_first.shortest_first import ShortestFirst

from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
from camshaft.testing.engines import make_request, model_free_engine
from camshaft.testing.scheduler import SchedulerContract


class TestContract(SchedulerContract):
    """All tests of the contract, on this scheduler."""

    def make(self, limits: SchedulerLimits) -> Scheduler:
        """See `SchedulerContract.make`."""
        return ShortestFirst(ShortestFirstSettings(), limits)


def order_of_ends(patience_s: float) -> list[str]:
    """Submit a long prompt and then two shorter ones to an engine that runs one at a time."""
    settings = ShortestFirstSettings(patience_s=patience_s)
    engine = model_free_engine(lambda limits: ShortestFirst(settings, limits), max_running=1)
    for name, length in (("long", 30), ("short", 3), ("middle", 12)):
        engine.submit(make_request(name, [5] * length, 2))
    ends = []
    while engine.has_work:
        ends += [output.id for output in engine.step() if output.finish]
    return ends


def test_short_prompts_go_first() -> None:
    """Whatever came first."""
    assert order_of_ends(patience_s=60) == ["short", "middle", "long"]


def test_without_patience_it_is_first_come_first_served() -> None:
    """The setting has an effect."""
    assert order_of_ends(patience_s=0) == ["long", "short", "middle"]
