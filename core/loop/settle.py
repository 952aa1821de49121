"""Settling a step: its tokens become facts, stops are found, surplus goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..contracts.scheduler import Rows
from ..request import FinishReason, RequestOutput, TokenLogprobs
from .state import RequestState, Status

if TYPE_CHECKING:
    from ..contracts.cache import KVManager
    from ..step import LogprobRows, PooledRows, StepOutput
    from .batch import Batch
    from .columns import Bool, Columns
    from .declare import Declarer
    from .stats import Stats
    from .stops import StopIds
    from .table import SlotTable


_FINISHED = Status.FINISHED
NOT_FINITE = "the model produced logits that are not finite"


class Settled(NamedTuple):
    """What a step brought.

    Attributes:
        outputs: Of requests that go on.
        ended: Of those that do not; `finish` is set in output and state, the rest is the caller's.
    """

    outputs: list[RequestOutput]
    ended: list[RequestOutput]


class Settler:
    """Applies step outputs to request states."""

    def __init__(
        self, cache: KVManager, table: SlotTable, stops: StopIds, stats: Stats, declarer: Declarer
    ) -> None:
        self.cache = cache
        self.table = table
        self.stops = stops
        self.stats = stats
        self.declarer = declarer

    def settle(self, batch: Batch, output: StepOutput, now: float) -> Settled:
        """Apply the results of a step.

        Args:
            batch: The step, as committed.
            output: Its results, rows in the batch's order.
            now: Seconds.
        """
        columns, table = batch.columns, self.table
        here = table.uid[columns.slots] == columns.uids  # the others ended or were preempted
        table.in_flight[columns.slots[here]] -= 1
        plain = here & self._is_plain(columns, output)
        outputs = self._go_on(columns, plain, output)
        ended: list[RequestOutput] = []
        logprobs, reads = _by_row(output.logprobs), _by_row(output.reads)
        others = (~plain).nonzero()[0].tolist() if len(outputs) < len(columns) else ()
        for row in others:
            if not here[row]:
                columns.states[row].in_flight -= 1
            published = self._settle_row(batch, output, row, logprobs.get(row), now)
            if row in reads and columns.states[row].status is not _FINISHED:
                published = published or _output(columns.states[row], [])
                published.prompt_logprobs = reads[row]
            if published is not None:
                (ended if published.finish else outputs).append(published)
        if output.pooled is not None:
            self._embed(columns, output.pooled, ended)
        self._commit(columns, here & output.finite, batch.step)
        return Settled(outputs, ended)

    def _embed(self, columns: Columns, pooled: PooledRows, ended: list[RequestOutput]) -> None:
        """Give requests that ended with a vector that, in place of a token."""
        rows = {columns.states[row].request.id: at for at, row in enumerate(pooled.row.tolist())}
        for one in ended:
            if one.id in rows and one.token_ids:
                one.token_ids, one.embedding = [], pooled.values[rows[one.id]].tolist()
                self.stats.output_tokens -= 1

    def _is_plain(self, columns: Columns, output: StepOutput) -> Bool:
        """Return which requests [B] just got one more token, and neither end nor begin with it.

        Only what holds for running requests is looked at. Steps with drafts have no such.
        """
        slots = columns.slots
        plain: Bool = (output.counts == 1) & output.finite & (self.table.left[slots] > 1)
        plain &= (self.table.started[slots] != 0) & (columns.drafts == 0)
        plain &= ~self.stops.among(output.tokens[:, 0])
        if output.logprobs is not None:
            plain[output.logprobs.row] = False
        return plain

    def _go_on(self, columns: Columns, plain: Bool, output: StepOutput) -> list[RequestOutput]:
        """Give plain requests their token."""
        states, slots, tokens = columns.states, columns.slots, output.tokens[:, 0]
        if np.count_nonzero(plain) < len(plain):
            states = [states[row] for row in plain.nonzero()[0].tolist()]
            slots, tokens = slots[plain], tokens[plain]
        self.table.left[slots] -= 1
        self.stats.output_tokens += len(states)
        chosen = tokens.tolist()
        for state, token in zip(states, chosen, strict=True):
            state.tokens.append(token)
        return [
            RequestOutput(id=one.request.id, token_ids=[token], cached_tokens=one.cached_tokens)
            for one, token in zip(states, chosen, strict=True)
        ]

    def _settle_row(
        self,
        batch: Batch,
        output: StepOutput,
        row: int,
        logprobs: list[TokenLogprobs] | None,
        now: float,
    ) -> RequestOutput | None:
        """Settle any request of a step; return what to publish."""
        state, count = batch.columns.states[row], output.counts.item(row)
        if not output.finite[row] and state.status is not Status.RUNNING:
            self.cache.distrust(state.uid)
        if state.status is _FINISHED:
            self.stats.wasted_tokens += count
            return None
        if not output.finite[row]:
            state.finish = "error"
            return _output(state, [], message=NOT_FINITE)
        if batch.columns.drafts[row]:
            self._give_back(batch, row, count)
        if not count:
            return None
        return self._extend(state, output.tokens[row, :count].tolist(), logprobs, now)

    def _extend(
        self, state: RequestState, new: list[int], logprobs: list[TokenLogprobs] | None, now: float
    ) -> RequestOutput:
        if state.first_token_s is None:
            state.first_token_s = now
            state.started = 1
        kept, state.finish = self._stop(state, new)
        state.tokens.extend(kept)
        state.left -= len(kept)
        self.stats.output_tokens += len(kept)
        stop_id = kept[-1] if state.finish == "stop" else None
        return _output(state, kept, logprobs[: len(kept)] if logprobs else [], stop_id)

    @staticmethod
    def _stop(state: RequestState, new: list[int]) -> tuple[list[int], FinishReason | None]:
        """Cut `new` at the first stop id or at the limit; say why."""
        room, stop_ids = state.left, state.stop_ids
        if not stop_ids.isdisjoint(new):
            for place, token in enumerate(new[:room]):
                if token in stop_ids:
                    return new[: place + 1], "stop"
        return (new[:room], "length") if len(new) >= room else (new, None)

    def _give_back(self, batch: Batch, row: int, sampled: int) -> None:
        """Correct the upper bounds by drafts that were rejected."""
        state, columns = batch.columns.states[row], batch.columns
        surplus = 1 + columns.drafts.item(row) - sampled
        if columns.rows[row] != Rows.DRAFTS or not surplus:
            return
        state.known -= surplus
        if state.status is Status.RUNNING:
            state.computed -= surplus
            if not state.in_flight:
                self.cache.shrink(state.uid, state.computed, batch.step)
                state.granted = min(state.granted, state.computed)
            state.recount()

    def _commit(self, columns: Columns, here: Bool, step: int) -> None:
        """Declare pages that generated tokens have filled; prompts were declared at launch."""
        slots = columns.slots
        written = np.minimum(columns.written, self.table.read(slots) - 1)
        for row in (here & self.declarer.due(slots, written)).nonzero()[0].tolist():
            self.declarer.declare(columns.states[row], written.item(row), step)


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
        queued_s=state.queued_s,
        message=message,
    )


def _by_row(rows: LogprobRows | None) -> dict[int, list[TokenLogprobs]]:
    found: dict[int, list[TokenLogprobs]] = {}
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
