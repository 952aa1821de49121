"""From a committed batch to the arrays of a `Step`."""

from __future__ import annotations

import numpy as np

from ..request import SamplingParams
from ..step import FROM_DEVICE, FROM_DRAFTS, Admissions, Ragged, Step, float32, int32
from .batch import Batch, Share
from .state import RequestState


def pack_step(batch: Batch) -> Step:
    """Return the step of `batch`, whose shares are in step order."""
    shares = batch.shares
    starts = np.zeros(len(shares) + 1, dtype=np.int32)
    np.cumsum([share.tokens for share in shares], out=starts[1:])
    step = Step(
        id=batch.step,
        decode_requests=sum(1 for share in shares if share.tokens == 1),
        slots=int32([share.state.slot for share in shares]),
        starts=starts,
        context=int32([share.start for share in shares]),
        drafts=int32([share.drafts for share in shares]),
        rows=int32([share.rows for share in shares]),
        tokens=_tokens(shares),
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
    return step


def _tokens(shares: list[Share]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    ids: list[int] = []
    for share in shares:
        state, start = share.state, share.start
        known = state.tokens
        end = start + share.tokens - share.drafts
        if state.device_token and end == state.known == start + 1:
            ids.append(FROM_DEVICE)
        elif end > len(known):  # only the newest token can be unknown to the host
            ids.extend(known[start:])
            ids.extend([FROM_DEVICE] * (end - max(start, len(known))))
        elif end == start + 1:
            ids.append(known[start])
        else:
            ids.extend(known[start:end])
        if share.drafts:
            ids.extend([FROM_DRAFTS] * share.drafts)
    return int32(ids)


def admissions(states: list[RequestState]) -> Admissions:
    """Return the admissions of requests that took a slot and have not yet run."""
    if not states:
        return Admissions()
    params = [state.request.params for state in states]
    return Admissions(
        slots=int32([state.slot for state in states]),
        context=int32([state.computed for state in states]),
        produced=int32([state.outputs for state in states]),
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
