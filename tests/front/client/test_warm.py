"""Warming up."""

from __future__ import annotations

from camshaft.client.warm import warm_up
from camshaft.loop.stats import Stats
from camshaft.testing.scripted import ScriptedEngine, Traits


def test_a_warm_up_steps_the_engine_and_leaves_nothing_behind() -> None:
    engine = ScriptedEngine()
    warm_up(engine, engine.traits.info)
    [request] = engine.submitted
    assert (len(request.prompt_ids), request.params.max_tokens) == (32, 2)
    assert (engine.stats, engine.has_work) == (Stats(), False)
    assert engine.reset_cache() == 0


def test_it_fits_the_smallest_engine() -> None:
    engine = ScriptedEngine(traits=Traits(room=2))
    warm_up(engine, engine.traits.info)
    assert len(engine.submitted[0].prompt_ids) == 1
