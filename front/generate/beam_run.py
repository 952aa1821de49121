"""Beam search with an engine: every token of every beam is a request of its own.

A beam's next token is the only one of a request whose prompt is the beam so far. Its keys and
values are in the cache, since those of the beam that it grew from became matchable when they were
computed: only what does not fill a page yet is computed again. So beams fork wherever prompts are
cached, the engine needs no notion of them, and what is dropped holds no pages.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import msgspec

from camshaft.request import RequestOutput, SamplingParams, TokenLogprobs

from .beams import BeamSearch
from .choice import ChoiceText
from .requests import aborted, raise_failure, request_for

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from camshaft.client import EngineClient
    from camshaft.request import Request
    from camshaft.text import Tokenizer

    from .answers import Call, Delta, Usage
    from .beams import Beam, Beams


class BeamRun:
    """The beams of all prompts of one call, a token of each at a time.

    Attributes:
        queued_s: Seconds that the first of all requests waited for its first step; None before.
    """

    def __init__(
        self, client: EngineClient, tokenizer: Tokenizer, call: Call, usages: Sequence[Usage]
    ) -> None:
        """Prepare; nothing runs before `deltas`.

        Args:
            client: Of the engine.
            tokenizer: Of its model.
            call: With `beams`, whose `n` best are told of each prompt.
            usages: Of each prompt; counted in here.
        """
        assert call.beams is not None, "it is a call for beams"
        self._client = client
        self._tokenizer = tokenizer
        self._call = call
        self._usages = usages
        info = client.info
        ends = frozenset(call.params.stop_token_ids)
        ends |= frozenset() if call.params.ignore_eos else frozenset(info.eos_ids)
        self._searches = [
            _search(call.beams, ends, min(call.params.max_tokens, info.room - len(prompt)))
            for prompt in call.prompts
        ]
        self._next = _next_token(call, info.vocab, self._searches[0].alternatives)
        self.queued_s: float | None = None
        self._open: list[str] = []
        self._cancelled = False

    async def cancel(self) -> None:
        """End the search; see `Generation.cancel`."""
        self._cancelled = True
        for request_id in self._open:
            await self._client.abort(request_id)

    async def deltas(self) -> AsyncGenerator[Delta]:
        """Yield the answers once they are known, whole, by index. Raises as `Generation.deltas`."""
        rounds = 0
        while any(one.running for one in self._searches):
            await self._grow(rounds)
            rounds += 1
        for place, search in enumerate(self._searches):
            for rank, beam in enumerate(search.ended[: self._call.n]):
                self._usages[place].completion_tokens += len(beam.tokens)
                yield self._told(place * self._call.n + rank, beam)

    async def _grow(self, rounds: int) -> None:
        """Continue all beams of all prompts by a token."""
        name = uuid.uuid4().hex
        requests: dict[str, Request] = {}
        for place, search in enumerate(self._searches):
            for rank, beam in enumerate(search.running):
                ids = [*self._call.prompts[place], *beam.tokens]
                request = request_for(self._call, ids, self._next, f"{name}-{place}-{rank}")
                requests[request.id] = request
        found = await self._run(requests, count_cached=rounds == 0)
        ordered = iter(found[one] for one in requests)
        for search in self._searches:
            if search.running:
                search.grow([next(ordered) for _ in search.running])

    async def _run(
        self, requests: dict[str, Request], *, count_cached: bool
    ) -> dict[str, TokenLogprobs]:
        """Return what may follow each request's prompt."""
        self._open = list(requests)
        found: dict[str, TokenLogprobs] = {}
        async with self._client.open(list(requests.values())) as stream:
            async for output in stream:
                raise_failure(output)
                if self._cancelled:
                    raise aborted()
                if self.queued_s is None:
                    self.queued_s = output.queued_s
                if output.logprobs:
                    found[output.id] = output.logprobs[0]
                if count_cached:
                    place = self._open.index(output.id)
                    self._usages[place].cached_tokens = output.cached_tokens
        return found

    def _told(self, index: int, beam: Beam) -> Delta:
        """Return an answer as text."""
        params = self._call.params
        stopped = beam.tokens[-1] if self._ends(beam) else None
        output = RequestOutput(
            id="",
            token_ids=list(beam.tokens),
            logprobs=[] if params.logprobs is None else _cut(beam.logprobs, params.logprobs),
            finish="length" if stopped is None else "stop",
            stop_id=stopped,
        )
        delta = ChoiceText(index, self._tokenizer, params).push(output)
        assert delta is not None, "what has ended is told"
        return delta

    def _ends(self, beam: Beam) -> bool:
        return beam.tokens[-1] in self._searches[0].end_ids


def _search(beams: Beams, ends: frozenset[int], most_tokens: int) -> BeamSearch:
    return BeamSearch(beams, ends, max(1, most_tokens))  # one that does not fit the engine refuses


def _next_token(call: Call, vocab: int, alternatives: int) -> SamplingParams:
    """Return what asks for the candidates of a next token, and at least for those to be told."""
    told = call.params.logprobs or 0
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        ignore_eos=True,
        logprobs=min(vocab, max(alternatives, told)),
    )


def _cut(logprobs: Sequence[TokenLogprobs], count: int) -> list[TokenLogprobs]:
    return [
        msgspec.structs.replace(
            one, top_ids=one.top_ids[:count], top_logprobs=one.top_logprobs[:count]
        )
        for one in logprobs
    ]
