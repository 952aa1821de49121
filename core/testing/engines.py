"""Engines without a model, for tests of schedulers, caches and the loop itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.executor.late import LateExecutor
from camshaft.executor.null import NullExecutor

from ..contracts.cache import CacheSpec, GroupSpec
from ..contracts.eviction import Entry, EvictionPolicy
from ..contracts.scheduler import SchedulerLimits
from ..loop.clock import Clock
from ..loop.engine import Engine
from ..loop.parts import EngineParts
from ..request import Request, RequestOutput, SamplingParams, TokenSpan
from .counting_cache import CountingCache

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..contracts.cache import KVManager
    from ..contracts.executor import Executor
    from ..contracts.predictor import StepTimePredictor
    from ..contracts.scheduler import Scheduler


class OldestFirst(EvictionPolicy):
    """Evicts in order of insertion."""

    def __init__(self) -> None:
        self._count = 0

    def on_insert(self, entry: Entry) -> None:
        """Number the entry."""
        self._count += 1
        entry.memo["number"] = self._count

    def on_touch(self, entry: Entry) -> None:
        """Nothing changes."""

    def on_evict(self, entry: Entry) -> None:
        """Nothing to forget."""

    def key(self, entry: Entry) -> int:
        """Return the number."""
        number: int = entry.memo["number"]
        return number


def cache_spec(
    pages: int,
    page_tokens: int = 4,
    *,
    prefix: bool = True,
    clock: Clock | None = None,
    executor: Executor | None = None,
) -> CacheSpec:
    """Return a spec with one full group, with trays of the executor."""
    clock = clock or Clock()
    return CacheSpec(
        page_tokens=page_tokens,
        groups=(GroupSpec("full", pages, layers=(0,), page_bytes=page_tokens),),
        identity=b"test",
        prefix=prefix,
        eviction=OldestFirst,
        now=clock.now,
        post=clock.post,
        tray=None if executor is None else executor.tray,
    )


def model_free_engine(
    scheduler: Callable[[SchedulerLimits], Scheduler],
    *,
    pages: int = 64,
    page_tokens: int = 4,
    step_tokens: int = 32,
    max_running: int = 8,
    depth: int = 1,
    late_steps: int = 0,
    cache: Callable[[CacheSpec], KVManager] = CountingCache,
    executor: Executor | None = None,
    clock: Clock | None = None,
    room: int = 0,
    debug: bool = True,
    predictor: StepTimePredictor | None = None,
) -> Engine:
    """Return an engine around the null executor, in debug mode.

    Args:
        scheduler: Makes the scheduler.
        pages: In the pool.
        page_tokens: In a page.
        step_tokens: Budget of a step.
        max_running: Slots.
        depth: Steps in flight behind the newest.
        late_steps: Wrap the executor so that results are so late.
        cache: Makes the KV manager.
        executor: Instead of the null executor.
        clock: Time.
        room: Longest sequence; 0 is the whole pool.
        debug: Check every invariant after every step.
        predictor: Of step times.
    """
    clock = clock or Clock()
    limits = SchedulerLimits(step_tokens, max_running)
    executor = executor or NullExecutor(token=7)
    if late_steps:
        executor = LateExecutor(executor, late_steps)
    return Engine(
        EngineParts(
            executor=executor,
            cache=cache(cache_spec(pages, page_tokens, clock=clock, executor=executor)),
            scheduler=scheduler(limits),
            limits=limits,
            clock=clock,
            page_tokens=page_tokens,
            room=room or pages * page_tokens,
            vocab=1000,
            eos_ids=frozenset({2}),
            depth=depth,
            debug=debug,
            predictor=predictor,
            entropy=0,
        )
    )


def make_request(
    name: str, prompt: Sequence[int], max_tokens: int = 8, **fields: object
) -> Request:
    """Return a greedy request over token ids.

    Args:
        name: Its id.
        prompt: Token ids.
        max_tokens: To generate.
        **fields: Of `Request`, or of `SamplingParams` where that has the name.
    """
    sampling = {key: fields.pop(key) for key in list(fields) if hasattr(SamplingParams, key)}
    params = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **sampling})  # type: ignore[arg-type]
    return Request(id=name, spans=(TokenSpan(list(prompt)),), params=params, **fields)  # type: ignore[arg-type]


def run_to_end(engine: Engine, most_steps: int = 10_000) -> dict[str, RequestOutput]:
    """Step until nothing is left; return each request's outputs, joined.

    Raises:
        AssertionError: It takes more than `most_steps`.
    """
    joined: dict[str, RequestOutput] = {}
    for _ in range(most_steps):
        if not engine.has_work:
            return joined
        collect(engine.step(), joined)
    raise AssertionError(f"{len(engine.states)} requests are not finished after {most_steps} steps")


def collect(outputs: list[RequestOutput], into: dict[str, RequestOutput]) -> None:
    """Join outputs by request."""
    for one in outputs:
        known = into.setdefault(one.id, RequestOutput(id=one.id))
        known.token_ids = known.token_ids + one.token_ids
        known.logprobs = known.logprobs + one.logprobs
        known.prompt_logprobs = known.prompt_logprobs + one.prompt_logprobs
        known.embedding = one.embedding
        assert known.finish is None, f"{one.id} got an output after its end"
        known.finish = one.finish
        known.stop_id = one.stop_id
        known.message = one.message
        known.cached_tokens = one.cached_tokens
