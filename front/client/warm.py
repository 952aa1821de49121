"""A first request that nobody waits for: what is made on first use is made at the start."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from camshaft.request import Request, SamplingParams, TokenSpan

if TYPE_CHECKING:
    from camshaft.info import EngineInfo

    from .loop import SteppedEngine

_PROMPT_TOKENS = 32
_OUTPUT_TOKENS = 2


def warm_up(engine: SteppedEngine, info: EngineInfo) -> None:
    """Run a short prefill and a decode, or make a vector; leave neither cached pages nor counts."""
    tokens = min(_PROMPT_TOKENS, max(1, info.room - _OUTPUT_TOKENS))
    params = SamplingParams(max_tokens=_OUTPUT_TOKENS, temperature=0, seed=0, ignore_eos=True)
    if not info.generates:
        params = SamplingParams(max_tokens=1, pooling="mean")
    engine.submit(Request(id="warm-up", spans=(TokenSpan([0] * tokens),), params=params))
    while engine.has_work:
        engine.step()
    engine.reset_cache(tiers=False)  # theirs may be of many days
    fresh = type(engine.stats)()
    for one in fields(fresh):
        setattr(engine.stats, one.name, getattr(fresh, one.name))
