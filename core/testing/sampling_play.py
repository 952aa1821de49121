"""Drives a sampler without an engine: admissions, row contexts, and toy logits to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.sampling import RowContext
from ..loop.pack import admissions
from ..loop.state import RequestState
from ..request import Request, SamplingParams, TokenLogprobs, TokenSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..contracts.sampling import Sampled, Sampler
    from ..step import Admissions


def params(
    temperature: float = 1.0,
    logit_bias: Mapping[int, float] | None = None,
    **others: float | tuple[int, ...] | tuple[tuple[int, ...], ...] | None,
) -> SamplingParams:
    """Return sampling parameters of a request that is never too long."""
    return SamplingParams(
        max_tokens=2**30,
        temperature=temperature,
        logit_bias=dict(logit_bias or {}),
        **others,  # type: ignore[arg-type]
    )


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that takes a slot.

    Attributes:
        slot: Which.
        params: How its tokens are chosen.
        seed: Of its random numbers.
        prompt: Ids.
        outputs: Ids that it produced before it was preempted.
        stops: Ids that `min_tokens` forbids.
    """

    slot: int
    params: SamplingParams
    seed: int = 0
    prompt: tuple[int, ...] = (0,)
    outputs: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()


def admit(*asks: Ask) -> Admissions:
    """Return the admissions that the engine would pack for `asks`."""
    return admissions([_state(ask) for ask in asks])


def _state(ask: Ask) -> RequestState:
    request = Request(id=str(ask.slot), spans=(TokenSpan(list(ask.prompt)),), params=ask.params)
    state = RequestState(1 + ask.slot, request, frozenset(ask.stops), 2**30, ask.seed)
    state.slot = ask.slot
    state.tokens.extend(ask.outputs)
    return state


def row_context(
    slots: Sequence[int],
    drafts: Sequence[Sequence[int]] = (),
    *,
    max_drafts: int = 0,
    device: str = "cpu",
) -> RowContext:
    """Return the context of a step that chooses tokens for `slots`.

    Args:
        slots: In step order.
        drafts: Of each slot; empty if nobody has any.
        max_drafts: K.
        device: Torch's name.
    """
    own = [list(one) for one in drafts] or [[] for _ in slots]
    counts = np.array([1 + len(one) for one in own])
    host_rows = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    padded = [one + [-1] * (max_drafts - len(one)) for one in own]
    requests = np.repeat(np.arange(len(own)), counts)
    return RowContext(
        slots=torch.tensor(slots, dtype=torch.int64, device=device),
        row_start=torch.tensor(host_rows, dtype=torch.int64, device=device),
        row_request=torch.tensor(requests, dtype=torch.int64, device=device),
        offsets=torch.tensor(
            np.arange(len(requests)) - host_rows[:-1][requests], dtype=torch.int64, device=device
        ),
        drafts=torch.tensor(padded, dtype=torch.int64, device=device).view(len(own), max_drafts),
        host_slots=np.array(slots, dtype=np.int32),
        host_rows=host_rows,
    )


def toy_logits(seed: int, tokens: Sequence[int], vocab: int) -> torch.Tensor:
    """Return float32 [V] that depends on a request's seed, the number of tokens and the last."""
    last = tokens[-1] if tokens else 0
    rng = np.random.default_rng([seed, len(tokens), last])
    # multiples of 1/2, so that there are ties to break
    return torch.tensor(np.round(rng.normal(0, 3, vocab) * 2) / 2, dtype=torch.float32)


class Play:
    """Requests that run by toy logits, step by step.

    Attributes:
        outputs: Ids that each slot's request chose here.
        logprobs: One for each of them, where asked for.
    """

    def __init__(self, sampler: Sampler, vocab: int, max_drafts: int = 0) -> None:
        self.sampler = sampler
        self.vocab = vocab
        self.max_drafts = max_drafts
        self.outputs: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprobs]] = {}
        self._asks: dict[int, Ask] = {}

    def start(self, *asks: Ask) -> Play:
        """Admit requests; the ones that had their slots are gone."""
        self.sampler.admit(admit(*asks))
        for ask in asks:
            self._asks[ask.slot] = ask
            self.outputs[ask.slot], self.logprobs[ask.slot] = [], []
        return self

    def step(self, slots: Sequence[int], drafts: Mapping[int, Sequence[int]] | None = None) -> None:
        """Choose tokens for `slots`, in this order in the batch."""
        own = [list((drafts or {}).get(slot, ())) for slot in slots]
        rows = row_context(slots, own, max_drafts=self.max_drafts)
        logits = [
            self._logits(slot, one[:place])
            for slot, one in zip(slots, own, strict=True)
            for place in range(len(one) + 1)
        ]
        sampled = self.sampler.sample(torch.stack(logits), rows, None)
        for place, slot in enumerate(slots):
            count = int(sampled.counts[place])
            self.outputs[slot].extend(sampled.tokens[place, :count].tolist())
            self.logprobs[slot].extend(logprobs_of(sampled, place)[:count])

    def run(self, slots: Sequence[int], steps: int) -> dict[int, list[int]]:
        """Take so many steps with all of `slots`; return the outputs."""
        for _ in range(steps):
            self.step(slots)
        return self.outputs

    def _logits(self, slot: int, drafts: list[int]) -> torch.Tensor:
        ask = self._asks[slot]
        history = [*ask.prompt, *ask.outputs, *self.outputs[slot], *drafts]
        return toy_logits(ask.seed, history, self.vocab)


def logprobs_of(sampled: Sampled, request: int) -> list[TokenLogprobs]:
    """Return the logprobs of each row of a request, without the padding."""
    rows = sampled.logprobs
    if rows is None:
        return []
    found = []
    for place in (rows.request == request).nonzero().flatten().tolist():
        kept = rows.ids[place] >= 0
        found.append(
            TokenLogprobs(
                float(rows.chosen[place]),
                int(rows.rank[place]),
                rows.ids[place][kept].tolist(),
                rows.values[place][kept].tolist(),
            )
        )
    return found


def same_logprobs(left: Iterable[TokenLogprobs], right: Iterable[TokenLogprobs]) -> bool:
    """Return whether ids and ranks are equal, and values up to rounding."""
    return all(
        (a.rank, a.top_ids) == (b.rank, b.top_ids)
        and np.allclose([a.logprob, *a.top_logprobs], [b.logprob, *b.top_logprobs], atol=1e-5)
        for a, b in zip(left, right, strict=True)
    )
