"""From a committed batch to the arrays of a `Step`."""

from __future__ import annotations

from sys import maxsize
from typing import TYPE_CHECKING

import numpy as np

from ..request import POOLINGS, SamplingParams
from ..step import FROM_DEVICE, FROM_DRAFTS, Admissions, Ragged, Step, float32, int32
from .batch import Batch
from .columns import Columns
from .state import RequestState

if TYPE_CHECKING:
    from ..step import Int32


def pack_step(batch: Batch) -> Step:
    """Return the step of `batch`, which is arranged."""
    columns = batch.columns
    starts = np.zeros(len(columns) + 1, dtype=np.int32)
    columns.tokens.cumsum(out=starts[1:])
    step = Step(
        id=batch.step,
        decode_requests=batch.shape.decode_tokens,
        slots=int32(columns.slots),
        starts=starts,
        context=int32(columns.start),
        drafts=int32(columns.drafts),
        rows=int32(columns.rows),
        tokens=_tokens(columns, starts),
        nano_batch=batch.nano_batch,
        pooling=_pooling(columns),
        admissions=admissions(batch.admitted),
    )
    if batch.writes:
        step.write_group = int32([write.group for _, write in batch.writes])
        step.write_slot = int32([state.slot for state, _ in batch.writes])
        step.write_first = int32([write.first for _, write in batch.writes])
        step.write_pages = Ragged.of([write.pages for _, write in batch.writes])
    if batch.copies:
        step.copies = np.array(batch.copies, dtype=np.int32)
    if batch.fresh:
        step.fresh = np.array([entry[1:] for entry in batch.fresh], dtype=np.int32)
    if reads := _reads(columns, starts):
        step.reads = np.array(reads, dtype=np.int32)
    return step


def _tokens(columns: Columns, starts: Int32) -> Int32:
    """Return ids [T]; only the newest token of a request can be unknown to the host."""
    tokens = np.empty(starts[-1], dtype=np.int32)
    tokens.fill(FROM_DEVICE)
    for row in (~columns.on_device).nonzero()[0].tolist():
        at, end = starts.item(row), starts.item(row + 1)
        first, drafts = columns.start.item(row), columns.drafts.item(row)
        host = columns.states[row].tokens[first : first + end - at - drafts]
        tokens[at : at + len(host)] = host
        tokens[end - drafts : end] = FROM_DRAFTS
    return tokens


def _reads(columns: Columns, starts: Int32) -> list[tuple[int, int, int]]:
    """Return `Step.reads`: each prompt token that asks is in one step, also if it is recomputed."""
    reads: list[tuple[int, int, int]] = []
    for row in (~columns.on_device).nonzero()[0].tolist():
        state, first = columns.states[row], columns.start.item(row)
        if state.request.params.prompt_logprobs is None:
            continue
        begin, last = max(first, state.unread), state.prompt_tokens - 1
        end = min(columns.written.item(row), last)
        if begin < end:
            at, top = starts.item(row) - first, state.request.params.prompt_logprobs or 0
            tokens = state.tokens[begin + 1 : end + 1]  # each by the logits before it
            reads += [(at + place, token, top) for place, token in enumerate(tokens, begin)]
            state.unread = end if end < last else maxsize
    return reads


def _pooling(columns: Columns) -> Int32:
    pooling = np.zeros(len(columns), dtype=np.int32)
    for row in (~columns.on_device).nonzero()[0].tolist():
        pooling[row] = POOLINGS.index(columns.states[row].request.params.pooling)
    return pooling if pooling.any() else pooling[:0]


_NOBODY = Admissions()  # making one takes as long as packing the rest of a small step


def admissions(states: list[RequestState]) -> Admissions:
    """Return the admissions of requests that took a slot and have not yet run."""
    if not states:
        return _NOBODY
    params = [state.request.params for state in states]
    offsets = [state.offset for state in states]
    return Admissions(
        slots=int32([state.slot for state in states]),
        context=int32([state.computed for state in states]),
        produced=int32([state.outputs for state in states]),
        offsets=int32(offsets if any(offsets) else ()),
        seeds=np.array([state.seed for state in states], dtype=np.uint64)
        .view(np.int32)
        .reshape(-1, 2),
        top_k=int32([one.top_k for one in params]),
        min_tokens=int32([one.min_tokens for one in params]),
        logprobs=int32([-1 if one.logprobs is None else one.logprobs for one in params]),
        temperature=float32([one.temperature for one in params]),
        top_p=float32([one.top_p for one in params]),
        min_p=float32([one.min_p for one in params]),
        presence=float32([one.presence_penalty for one in params]),
        frequency=float32([one.frequency_penalty for one in params]),
        repetition=float32([one.repetition_penalty for one in params]),
        bias_ids=Ragged.of([list(one.logit_bias) for one in params]),
        bias_values=_bits([list(one.logit_bias.values()) for one in params]),
        allowed=Ragged.of([one.allowed_token_ids for one in params]),
        stops=Ragged.of([sorted(state.stop_ids) for state in states]),
        bad_words=Ragged.of([_bad_words(one) for one in params]),
        prompt=Ragged.of([_prompt(state) for state in states]),
        outputs=Ragged.of([_outputs(state) for state in states]),
    )


def _bits(lists: list[list[float]]) -> Ragged:
    joined = Ragged.of([[0] * len(one) for one in lists])
    joined.values = float32([value for one in lists for value in one]).view(np.int32)
    return joined


def _bad_words(params: SamplingParams) -> list[int]:
    return [value for word in params.bad_words for value in (len(word), *word)]


def _prompt(state: RequestState) -> list[int]:
    return state.tokens[: state.prompt_tokens] if state.request.params.needs_history else []


def _outputs(state: RequestState) -> list[int]:
    return state.tokens[state.prompt_tokens :] if state.request.params.needs_history else []
