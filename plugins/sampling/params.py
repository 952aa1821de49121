"""Sampling parameters of every slot: what the host must know, and tensors on the device."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from .random import stream_keys, uniforms
from .upload import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.sampling import SamplerSpec
    from camshaft.step import Admissions

COLDEST = 1e-4
"""A temperature up to this counts as 0. Below it near-ties would be decided by rounding."""


class Method(IntEnum):
    """How a slot's tokens are chosen. Depends on its own parameters only, never on the batch."""

    GREEDY = 0
    DRAW = 1
    DRAW_CUT = 2


class Cuts(NamedTuple):
    """Which limits any of some rows has. Leaving out the others saves passes, and changes nothing.

    Attributes:
        top_k: Whether any row has a top-k.
        top_p: Whether any row has a top-p.
        min_p: Whether any row has a min-p.
    """

    top_k: bool
    top_p: bool
    min_p: bool


class RowParams(NamedTuple):
    """Parameters of N rows. `top_k` is the vocabulary where it is off.

    Attributes:
        temperature: float32 [N], above 0.
        top_p: float32 [N].
        min_p: float32 [N].
        top_k: int64 [N].
        uniform: float64 [N], the row's random number.
    """

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    uniform: torch.Tensor


class Tables(NamedTuple):
    """Parameters of R slots on the device, where recorded graphs read them.

    Attributes:
        floats: float32 [3, R], temperature (0 for `GREEDY`), top-p and min-p.
        integers: int64 [3, R], key of the random stream, tokens produced, and top-k.
    """

    floats: torch.Tensor
    integers: torch.Tensor


class SlotParams:
    """Parameters by slot.

    Attributes:
        method: int8 [R] of `Method`. On the host, as all of these.
        top_k: bool [R] whether it has one.
        top_p: bool [R] whether it has one.
        min_p: bool [R] whether it has one.
        logprobs: int64 [R] alternatives to report, -1 for no logprobs.
        tables: What the device must know. Never replaced.
    """

    def __init__(self, spec: SamplerSpec) -> None:
        self._vocab = spec.vocab
        self._device = torch.device(spec.device)
        self.method = np.zeros(spec.slots, dtype=np.int8)
        self.top_k = np.zeros(spec.slots, dtype=np.bool_)
        self.top_p = np.zeros(spec.slots, dtype=np.bool_)
        self.min_p = np.zeros(spec.slots, dtype=np.bool_)
        self.logprobs = np.full(spec.slots, -1, dtype=np.int64)
        self.tables = Tables(
            torch.zeros((3, spec.slots), device=self._device),
            torch.zeros((3, spec.slots), dtype=torch.int64, device=self._device),
        )

    def admit(self, admissions: Admissions) -> None:
        """Set the parameters of slots that change hands."""
        slots = admissions.slots.astype(np.int64)
        wide = (admissions.top_k <= 0) | (admissions.top_k >= self._vocab)
        top_k = np.where(wide, self._vocab, admissions.top_k).astype(np.int64)
        self.method[slots] = _methods(admissions, self._vocab)
        self.top_k[slots], self.top_p[slots] = ~wide, admissions.top_p < 1
        self.min_p[slots] = admissions.min_p > 0
        self.logprobs[slots] = admissions.logprobs
        temperature = np.where(self.method[slots] == Method.GREEDY, 0, admissions.temperature)
        floats = np.stack([temperature, admissions.top_p, admissions.min_p]).astype(np.float32)
        keys = stream_keys(admissions.seeds)
        integers = np.stack([keys, admissions.produced.astype(np.int64), top_k])
        where = upload(slots, self._device)
        self.tables.floats.index_copy_(1, where, upload(floats, self._device))
        self.tables.integers.index_copy_(1, where, upload(integers, self._device))

    def cuts(self, slots: NDArray[np.int32]) -> Cuts:
        """Return the limits of the rows of `slots`."""
        return Cuts(*(bool(one[slots].any()) for one in (self.top_k, self.top_p, self.min_p)))

    def of(self, slots: torch.Tensor, offsets: torch.Tensor) -> RowParams:
        """Return the parameters of rows, given their slots and offsets [N]."""
        temperature, top_p, min_p = self.tables.floats[:, slots]
        keys, produced, top_k = self.tables.integers[:, slots]
        return RowParams(temperature, top_p, min_p, top_k, uniforms(keys, produced + offsets))

    def produced(self, slots: torch.Tensor, counts: torch.Tensor) -> None:
        """Add `counts` [S] to the tokens produced by `slots` [S]."""
        self.tables.integers[1].index_add_(0, slots, counts)


def _methods(admissions: Admissions, vocab: int) -> NDArray[np.int8]:
    """Return the cheapest method that gives each admission its tokens."""
    cuts = (admissions.top_k > 0) & (admissions.top_k < vocab) | (admissions.top_p < 1)
    methods = np.where(cuts, Method.DRAW_CUT, Method.DRAW)
    # the best token has at least 1 / V of the mass, so a top_p of no more keeps it alone
    alone = (admissions.top_k == 1) | (admissions.top_p * vocab <= 1) | (admissions.min_p >= 1)
    cold = admissions.temperature <= COLDEST
    return np.where(cold | alone, Method.GREEDY, methods).astype(np.int8)
