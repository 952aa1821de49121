"""An engine whose answers a test writes: for everything in front of the engine.

It has the surface of `camshaft.loop.engine.Engine` and its manners (stop ids, limits, aborts,
counters, pages of a prefix cache), and no model: a script says which ids a request gets.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from camshaft.contracts.cache import PoolUsage
from camshaft.errors import CheckpointError, RequestError
from camshaft.info import EngineInfo
from camshaft.loop.clock import Clock
from camshaft.loop.stats import Stats
from camshaft.request import FinishReason, Request, RequestOutput, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Iterable

Script = Callable[[Request], "Iterable[int]"]
"""The ids that a request gets. When they run out it goes on with `FILLER`."""

FILLER = ord("x")
FORCING = 100.0
"""A logit bias from which on this id is always chosen, as in a real engine."""


class ScriptError(Exception):
    """Raised by a script: its request ends with an error, the engine goes on."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a scripted engine says that it is.

    Attributes:
        room: Most tokens of prompt and output.
        vocab: Ids are below it; the byte tokenizer's by default.
        eos_ids: End a request.
        max_running: Requests that run at once.
        pages: In the pool.
        page_tokens: In a page.
        step_s: Seconds that a step takes.
        model: Served name.
    """

    room: int = 256
    vocab: int = 259
    eos_ids: tuple[int, ...] = (256, 258)
    max_running: int = 8
    pages: int = 1000
    page_tokens: int = 16
    step_s: float = 0.0
    model: str = "toy"

    @property
    def info(self) -> EngineInfo:
        """What its client is told."""
        return EngineInfo(
            version="0",
            model=self.model,
            recipe="scripted",
            vocab=self.vocab,
            room=self.room,
            eos_ids=self.eos_ids,
            page_tokens=self.page_tokens,
            pool_tokens=self.pages * self.page_tokens,
            device="none",
            components={},
            plugins={},
            weight_bytes=0,
            cache_bytes=0,
            page_bytes=(self.page_tokens * 8,),
        )


def letters(request: Request) -> Iterator[int]:
    """Script: lower-case letters that depend on prompt and seed alone."""
    seed = request.params.seed if request.params.temperature else 0
    chooser = random.Random(f"{request.prompt_ids}{seed}")
    while True:
        yield chooser.randrange(ord("a"), ord("z") + 1)


@dataclass(slots=True, eq=False)
class _Running:
    request: Request
    ids: Iterator[int]
    stops: frozenset[int]
    limit: int
    produced: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class _Queues:
    running: dict[str, _Running] = field(default_factory=dict)
    waiting: deque[_Running] = field(default_factory=deque)


class ScriptedEngine:
    """Gives each running request one id of its script in every step, or at once a vector.

    That has the number of tokens, the first id and the last.
    """

    def __init__(self, script: Script = letters, traits: Traits | None = None) -> None:
        self.traits = traits or Traits()
        self.stats = Stats()
        self.clock = Clock()
        self.view = _Queues()
        self.wake_at: float | None = None
        self.closed = False
        self.submitted: list[Request] = []
        self._script = script
        self._outbox: list[RequestOutput] = []
        self._cached: set[tuple[tuple[str, str, int], tuple[int, ...]]] = set()

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self.view.running or self.view.waiting or self._outbox)

    def submit(self, request: Request) -> None:
        """Take a request, or raise `RequestError`."""
        prompt, params, traits = request.prompt_ids, request.params, self.traits
        if not prompt or max(prompt) >= traits.vocab or len(prompt) >= traits.room:
            raise RequestError("the engine does not take this prompt", param="prompt")
        eos = () if params.ignore_eos else traits.eos_ids
        limit = min(params.max_tokens, traits.room - len(prompt))
        stops = frozenset((*eos, *params.stop_token_ids))
        one = _Running(request, self._ids(request), stops, limit)
        self.view.waiting.append(one)
        self.submitted.append(request)
        self.stats.requests += 1

    def abort(self, request_id: str, finish: FinishReason = "abort", returned: int = 0) -> None:
        """End a request wherever it is; what it returned makes no difference here."""
        for one in [*self.view.running.values(), *self.view.waiting]:
            if one.request.id == request_id:
                self._finish(one, RequestOutput(id=request_id, finish=finish))

    def step(self) -> list[RequestOutput]:
        """Admit what fits and give everybody who runs an id."""
        while self.view.waiting and len(self.view.running) < self.traits.max_running:
            self._admit(self.view.waiting.popleft())
        if self.view.running:
            time.sleep(self.traits.step_s)
            self.stats.steps += 1
        for one in list(self.view.running.values()):
            self._advance(one)
        published, self._outbox = self._outbox, []
        return published

    @property
    def unused_tokens(self) -> int:
        """Tokens that pages in use could hold and do not."""
        size, running = self.traits.page_tokens, self.view.running.values()
        return sum(-(len(one.request.prompt_ids) + one.produced) % size for one in running)

    def cache_counters(self) -> dict[str, float]:
        """Return what the cache counts: nothing."""
        return {}

    def usage(self) -> tuple[PoolUsage, ...]:
        """Return the pages of the one pool; cached ones count as free."""
        size = self.traits.page_tokens
        lengths = [len(one.request.prompt_ids) + one.produced for one in self.view.running.values()]
        in_use = sum(-(-length // size) for length in lengths)
        total = self.traits.pages
        return (PoolUsage(total, total - in_use, 0, in_use, 0),)

    def reset_cache(self, *, tiers: bool = True) -> int:
        """Forget every prefix."""
        dropped = len(self._cached)
        self._cached.clear()
        return dropped

    def sleep(self) -> int:
        """Forget every prefix, and say what its pages would be."""
        self.reset_cache()
        return self.traits.pages * self.traits.info.page_bytes[0]

    def wake(self) -> None:
        """Do nothing: it has no pages."""

    def fail_all(self, message: str) -> list[RequestOutput]:
        """End every request with an error."""
        for one in [*self.view.running.values(), *self.view.waiting]:
            self._finish(one, RequestOutput(id=one.request.id, finish="error", message=message))
        published, self._outbox = self._outbox, []
        return published

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True

    def _admit(self, one: _Running) -> None:
        prompt, size = one.request.prompt_ids, self.traits.page_tokens
        pages = [tuple(prompt[:end]) for end in range(size, len(prompt) + 1, size)]
        scope = one.request.scope
        names = one.request.salt, scope.namespace, scope.version
        keys = [(names, page) for page in pages]
        hits = [len(page) for names, page in keys if (names, page) in self._cached]
        one.cached_tokens = min(max(hits, default=0), (len(prompt) - 1) // size * size)
        self._cached.update(keys)
        self.view.running[one.request.id] = one
        self.stats.prompt_tokens += len(prompt)
        self.stats.cached_tokens += one.cached_tokens

    def _advance(self, one: _Running) -> None:
        if one.request.params.pooling != "none":
            ids = one.request.prompt_ids
            vector = [float(len(ids)), float(ids[0]), float(ids[-1])]
            self._finish(one, RequestOutput(id=one.request.id, embedding=vector, finish="length"))
            return
        try:
            token = next(one.ids)
        except ScriptError as error:
            self._finish(one, RequestOutput(id=one.request.id, finish="error", message=str(error)))
            return
        if token in one.stops and one.produced < one.request.params.min_tokens:
            token = FILLER
        one.produced += 1
        self.stats.output_tokens += 1
        output = RequestOutput(
            id=one.request.id,
            token_ids=[token],
            logprobs=self._logprobs(one.request, token),
            cached_tokens=one.cached_tokens,
        )
        if token in one.stops:
            output.finish, output.stop_id = "stop", token
        elif one.produced == one.limit:
            output.finish = "length"
        if output.finish is None:
            self._outbox.append(output)
        else:
            self._finish(one, output)

    def _finish(self, one: _Running, output: RequestOutput) -> None:
        assert output.finish is not None
        if self.view.running.pop(one.request.id, None) is None:
            self.view.waiting.remove(one)
        output.cached_tokens = one.cached_tokens
        self.stats.finished[output.finish] += 1
        self._outbox.append(output)

    def _ids(self, request: Request) -> Iterator[int]:
        forced = [id for id, bias in request.params.logit_bias.items() if bias >= FORCING]
        if not forced:
            yield from self._script(request)
        while True:
            yield forced[0] if forced else FILLER

    def _logprobs(self, request: Request, token: int) -> list[TokenLogprobs]:
        """Invent logprobs: the token is certain to a half, its successors to less and less."""
        count = request.params.logprobs
        if count is None:
            return []
        ids = [(token + place) % self.traits.vocab for place in range(count)]
        return [TokenLogprobs(-0.5, 1, ids, [-0.5 - place for place in range(count)])]


def build_scripted(
    argument: dict[str, Any], progress: Callable[[str], None]
) -> tuple[ScriptedEngine, EngineInfo]:
    """Build one in an engine process: the `builder` of a `camshaft.client.Boot`.

    Args:
        argument: Fields of `Traits`; and `crash`, a prompt id that ends the engine, `damaged`, a
            message with which the start fails, or `start_s`, seconds that it takes.
        progress: Is told one thing.
    """
    crash, damaged = argument.pop("crash", None), argument.pop("damaged", None)
    progress("setting the stage")
    time.sleep(argument.pop("start_s", 0.0))
    if damaged is not None:
        raise CheckpointError(damaged)
    traits = Traits(**argument)

    def script(request: Request) -> Iterator[int]:
        if crash in request.prompt_ids:
            raise RuntimeError("the script crashes")
        yield from letters(request)

    return ScriptedEngine(script, traits), traits.info
