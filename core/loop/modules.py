"""Modules: parts of prompts that are computed alone, before the requests that hold them.

Source: Gim et al., "Prompt Cache: Modular Attention Reuse for Low-Latency Inference", MLSys 2024
(arXiv 2311.04934), section 3. A request is admitted once the cache has all its modules; those that
it lacks are computed by requests of their own, which come to nothing but cached pages.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ..contracts.cache import Prefix, Run
from ..errors import RequestError
from ..request import Request, SamplingParams

if TYPE_CHECKING:
    from ..contracts.cache import KVManager
    from ..request import TokenSpan
    from .state import RequestState

MOST_ROUNDS = 64
"""How often the modules of one request are computed, should they be evicted before it runs."""

_PARAMS = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)


def runs_of(request: Request) -> tuple[Run, ...]:
    """Return `Prefix.runs` of a request; empty also where its modules are an ordinary prefix."""
    runs, first, behind = list[Run](), 0, 0
    for span in request.modules:
        assert span.position is not None
        runs.append(Run(first, span.position))
        first, behind = first + len(span.ids), span.position + len(span.ids)
    if runs and first < len(request.prompt_ids):
        runs.append(Run(first, behind))
    # one module at 0 sees what it would see in a text, and so does what follows it
    plain = len(runs) <= 2 and all(one.first == one.position for one in runs)
    return () if plain else tuple(runs)


def check_modules(request: Request, page_tokens: int, positions: int, cache: KVManager) -> None:
    """Refuse modules that cannot be composed.

    Args:
        request: With or without modules.
        page_tokens: Of a page.
        positions: Of the model.
        cache: That would compose them.

    Raises:
        RequestError: Says which and why.
    """
    if not request.modules:
        return
    if request.params.prompt_logprobs is not None:
        text = "there are no logprobs of a prompt with modules, which are computed apart from it"
        raise RequestError(text, param="prompt_logprobs", code="unsupported")
    if request.params.pooling in ("mean", "cls"):
        text = "modules are computed apart from the prompt, of whose tokens the vector is made"
        raise RequestError(text, param="pooling", code="unsupported")
    behind = _end(request, page_tokens)
    own = len(request.prompt_ids) - sum(len(one.ids) for one in request.modules)
    if not own:
        raise RequestError("behind its modules the prompt is empty", param="prompt")
    if behind + own >= positions:
        raise RequestError(
            f"the prompt ends at position {behind + own}; this model has {positions} positions, "
            "and a generated token needs one",
            param="prompt",
            code="context_length_exceeded",
        )
    if cache.no_modules and runs_of(request):
        raise RequestError(
            f"the modules of the prompt: {cache.no_modules}", param="prompt", code="unsupported"
        )


def _end(request: Request, page_tokens: int) -> int:
    """Return the position behind the last module, if all of them are well-formed."""
    behind = 0
    for number, (module, span) in enumerate(zip(request.modules, request.spans, strict=False)):
        position, fault = module.position or 0, ""
        if module is not span:
            fault = "comes behind other text; modules come first"
        elif not module.ids or len(module.ids) % page_tokens:
            fault = f"has {len(module.ids)} tokens, which do not fill pages of {page_tokens}"
        elif position < behind:
            fault = f"is at position {position}, before the end of the one ahead, {behind}"
        if fault:
            raise RequestError(f"module {number + 1} of the prompt {fault}", param="prompt")
        behind = position + len(module.ids)
    return behind


class Modules:
    """Which modules are being computed, and who waits for them."""

    def __init__(self, cache: KVManager, page_tokens: int) -> None:
        self._cache = cache
        self._page_tokens = page_tokens
        self._awaited: dict[str, list[RequestState]] = {}
        self._promised: dict[int, int] = {}

    def lacking(self, state: RequestState) -> list[Request]:
        """Let a request wait for the modules that the cache lacks.

        Not as long as the request would find no pages after them: they might be gone by then.

        Returns:
            Requests for those that nobody is computing yet.
        """
        asks = state.request
        modules = [_module(state, span) for span in asks.modules]
        due = [one for one in modules if one.id in self._awaited]
        new = [one for one in modules if one.id not in self._awaited and not self._is_cached(one)]
        if new:
            misses = sum(len(one.prompt_ids) for one in new)
            pages = -(-(len(state.tokens) - state.module_tokens + misses) // self._page_tokens)
            if pages > self._room():
                return []
            self._promised[state.uid] = pages
            state.module_misses += misses
            state.module_rounds += 1
        for one in (*due, *new):
            self._awaited.setdefault(one.id, []).append(state)
        state.modules_due += len(due) + len(new)
        return new

    def _room(self) -> int:
        """Return how many pages can be had and are not meant for others that wait for modules."""
        least = min(one.free + one.evictable for one in self._cache.usage())
        return least - sum(self._promised.values())

    def ended(self, name: str) -> list[RequestState] | None:
        """Return who waited for the request of this id; None if it is not a module."""
        waiting = self._awaited.pop(name, None)
        for state in waiting or ():
            state.modules_due -= 1
            if not state.modules_due:
                self._promised.pop(state.uid, None)
        return waiting

    def _is_cached(self, module: Request) -> bool:
        prefix = Prefix(
            module.prompt_ids,
            module.salt,
            module.adapter,
            module.priority,
            module.scope,
            runs=runs_of(module),
        )
        return self._cache.match(prefix, len(prefix.tokens)).ready == len(prefix.tokens)


def _module(state: RequestState, span: TokenSpan) -> Request:
    asks = state.request
    # an id for what the pages are, with all that isolates them
    said = (asks.salt, asks.adapter, asks.scope, span.position, span.ids)
    return Request(
        id=f"module {blake2b(repr(said).encode(), digest_size=16).hexdigest()}",
        spans=(span,),
        params=_PARAMS,
        arrival=state.arrival,
        priority=asks.priority,
        ttft_slo_s=asks.ttft_slo_s,
        tenant=asks.tenant,
        salt=asks.salt,
        scope=asks.scope,
        adapter=asks.adapter,
    )
