"""Settling a step: its tokens become facts, stops are found, surplus goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..contracts.cache import KVManager, TableWrite
from ..contracts.scheduler import Rows
from ..request import FinishReason, RequestOutput, TokenLogprobs
from .state import RequestState, Status

if TYPE_CHECKING:
    from ..step import StepOutput
    from .batch import Batch, Share
    from .stats import Stats


_FINISHED, _WAITING = Status.FINISHED, Status.WAITING
NOT_FINITE = "the model produced logits that are not finite"


class PendingWrite(NamedTuple):
    """A table write that goes with the next step, unless its request was re-admitted by then."""

    state: RequestState
    admission: int
    write: TableWrite


class Settler:
    """Applies step outputs to request states."""

    def __init__(self, cache: KVManager, stats: Stats, page_tokens: int) -> None:
        self.cache = cache
        self.stats = stats
        self.page_tokens = page_tokens
        self.writes: list[PendingWrite] = []

    def settle(self, batch: Batch, output: StepOutput, now: float) -> list[RequestOutput]:
        """Apply the results of a step.

        Args:
            batch: The step, as committed.
            output: Its results, rows in the batch's order.
            now: Seconds.

        Returns:
            What to publish. A request that ended has `finish` set here and in its state; the
            caller releases it.
        """
        logprobs = _logprobs_by_row(output)
        published = []
        results = zip(
            batch.shares,
            output.tokens.tolist(),
            output.counts.tolist(),
            output.finite.tolist(),
            strict=True,
        )
        for row, (share, tokens, count, finite) in enumerate(results):
            state = share.state
            state.in_flight -= 1
            status = state.status
            if status is _FINISHED:
                self.stats.wasted_tokens += count
                continue
            if not finite:
                state.finish = "error"
                published.append(_output(state, [], message=NOT_FINITE))
                continue
            if share.drafts:
                self._give_back(share, count, batch.step)
            if count:
                published.append(self._extend(state, tokens[:count], logprobs.get(row), now))
            if status is _WAITING:
                state.recount()
            else:
                self._commit(state, share, batch.step)
        return published

    def _extend(
        self,
        state: RequestState,
        new: list[int],
        logprobs: list[TokenLogprobs] | None,
        now: float,
    ) -> RequestOutput:
        if state.first_token_s is None:
            state.first_token_s = now
        kept, state.finish = self._stop(state, new)
        state.tokens.extend(kept)
        self.stats.output_tokens += len(kept)
        stop_id = kept[-1] if state.finish == "stop" else None
        return _output(state, kept, logprobs[: len(kept)] if logprobs else [], stop_id)

    @staticmethod
    def _stop(state: RequestState, new: list[int]) -> tuple[list[int], FinishReason | None]:
        """Cut `new` at the first stop id or at the limit; say why."""
        room = state.max_tokens - len(state.tokens) + state.prompt_tokens
        stop_ids = state.stop_ids
        if not stop_ids.isdisjoint(new):
            for place, token in enumerate(new[:room]):
                if token in stop_ids:
                    return new[: place + 1], "stop"
        return (new[:room], "length") if len(new) >= room else (new, None)

    def _give_back(self, share: Share, sampled: int, step: int) -> None:
        """Correct the upper bounds by drafts that were rejected."""
        surplus = 1 + share.drafts - sampled
        if share.rows is not Rows.DRAFTS or not surplus:
            return
        state = share.state
        state.known -= surplus
        if state.status is Status.RUNNING and share.admission == state.admission:
            state.computed -= surplus
            if not state.in_flight:
                self.cache.shrink(state.uid, state.computed, step)
                state.granted = min(state.granted, state.computed)
            state.recount()

    def _commit(self, state: RequestState, share: Share, step: int) -> None:
        """Declare pages that generated tokens have filled; prompts were declared at launch."""
        written = share.start + share.tokens
        if written - state.committed < self.page_tokens or share.admission != state.admission:
            return
        self.declare(state, min(written, len(state.tokens) - 1), step)

    def declare(self, state: RequestState, written: int, step: int) -> None:
        """Tell the cache that `step` writes the first `written` tokens, if that fills a page."""
        whole = written - written % self.page_tokens
        if whole > state.committed:
            delta = self.cache.commit(state.uid, written, step)
            state.committed = whole
            self.writes.extend(PendingWrite(state, state.admission, one) for one in delta.writes)


def _output(
    state: RequestState,
    tokens: list[int],
    logprobs: list[TokenLogprobs] | None = None,
    stop_id: int | None = None,
    message: str = "",
) -> RequestOutput:
    return RequestOutput(
        id=state.request.id,
        token_ids=tokens,
        logprobs=logprobs or [],
        finish=state.finish,
        stop_id=stop_id,
        cached_tokens=max(0, state.cached_tokens),
        message=message,
    )


def _logprobs_by_row(output: StepOutput) -> dict[int, list[TokenLogprobs]]:
    found: dict[int, list[TokenLogprobs]] = {}
    rows = output.logprobs
    if rows is None:
        return found
    ids, values = rows.ids.tolist(), rows.values.tolist()
    for place, row in enumerate(rows.row.tolist()):
        wanted = [at for at, one in enumerate(ids[place]) if one >= 0]
        found.setdefault(row, []).append(
            TokenLogprobs(
                float(rows.chosen[place]),
                int(rows.rank[place]),
                [ids[place][at] for at in wanted],
                [values[place][at] for at in wanted],
            )
        )
    return found
