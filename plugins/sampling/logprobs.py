"""Logprobs of the raw logits, for the requests that ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad

from camshaft.contracts.sampling import DeviceLogprobs

from .blocks import part_rows
from .leading import Leading, solve
from .rows import rows_where
from .upload import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.sampling import RowContext


class RawRows(NamedTuple):
    """The L rows whose logprobs are wanted, as they are before any processing.

    Attributes:
        which: int64 [L], rows of the step.
        logits: float32 [*, V], where they stand:
        at: int64 [L], in these rows.
        wanted: int64 [L], how many alternatives.
        most: The largest of these.
    """

    which: torch.Tensor
    logits: torch.Tensor
    at: torch.Tensor
    wanted: torch.Tensor
    most: int


def keep_raw(
    logits: torch.Tensor, rows: RowContext, alternatives: NDArray[np.int64], *, copy: bool
) -> RawRows | None:
    """Return the rows that want logprobs, or None if none does.

    Args:
        logits: float32 [Q, V].
        rows: Whose they are.
        alternatives: [S] how many each request wants, -1 for no logprobs. Host.
        copy: Whether `logits` will be changed.
    """
    if alternatives.max(initial=-1) < 0:
        return None
    owners = rows_where(alternatives >= 0, rows)
    wanted = np.repeat(alternatives, np.diff(rows.host_rows))[owners]
    which = upload(owners, logits.device)
    most = min(int(wanted.max()), logits.shape[1])
    wanted_there = upload(wanted, logits.device)
    if copy:
        at = torch.arange(len(owners), device=logits.device)
        return RawRows(which, logits.index_select(0, which), at, wanted_there, most)
    return RawRows(which, logits, which, wanted_there, most)


def report(raw: RawRows, tokens: torch.Tensor, rows: RowContext) -> DeviceLogprobs:
    """Return the logprobs of chosen `tokens` [Q] and the best alternatives.

    Every row of a request is reported, also those behind a rejected draft. Equal logprobs rank by
    id. Places without an alternative, because fewer are wanted or because the rest have
    probability zero, hold the id -1.
    """
    return DeviceLogprobs(
        rows.row_request[raw.which], rows.offsets[raw.which], *_report(raw, tokens[raw.which])
    )


def report_tokens(
    logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor, most: int
) -> DeviceLogprobs:
    """Return the logprobs of given tokens. See `Sampler.logprobs`."""
    at = torch.arange(len(tokens), device=logits.device)
    raw = RawRows(at, logits, at, wanted, min(most, logits.shape[1]))
    return DeviceLogprobs(at, torch.zeros_like(at), *_report(raw, tokens))


def _report(raw: RawRows, token: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return value, rank, best ids and their values for `token` int64 [L], part by part."""
    parts = []
    size = part_rows(raw.logits)
    for start in range(0, len(token), size):
        part = slice(start, start + size)
        values = _log_softmax(raw.logits.index_select(0, raw.at[part]))
        chosen, rank = _rank(values, token[part].unsqueeze(1))
        parts.append((chosen, rank, *_best(values, raw.wanted[part], raw.most)))
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return logprobs [N, V], each row's with the same bits wherever it stands.

    On CUDA a sum is taken in another order where a row does not begin at a multiple of 16 bytes.
    """
    width = logits.shape[1]
    missing = -width % 4 if logits.is_cuda else 0
    if missing:
        logits = pad(logits, (0, missing), value=-torch.inf)
    return logits.log_softmax(dim=1)[:, :width]


def _rank(values: torch.Tensor, token: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return value float32 [N] and rank int64 [N], from 1, of `token` [N, 1] in values [N, V].

    Comparisons that write 1 and 0 as float32, which counts exactly up to 2**24, are four times as
    fast on a CPU as those that write bool.
    """
    chosen = values.gather(1, token)
    better = torch.empty_like(values)
    torch.gt(values, chosen, out=better)
    ties = torch.empty_like(values)
    torch.eq(values, chosen, out=ties)
    lower = torch.arange(values.shape[1], dtype=values.dtype, device=values.device)
    better.add_(ties.mul_(torch.lt(lower, token, out=torch.empty_like(values))))
    return chosen.squeeze(1), better.sum(dim=1).to(torch.int64) + 1


def _best(
    values: torch.Tensor, wanted: torch.Tensor, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids int64 [N, most] and values of the best `wanted` [N] of each row."""
    ids = wanted.new_full((len(wanted), most), -1)
    tops = values.new_full((len(wanted), most), -torch.inf)
    if not most:
        return ids, tops

    def attempt(some: Leading, index: torch.Tensor | None) -> torch.Tensor:
        where = slice(None) if index is None else index
        ids[where] = some.ids[:, :most]
        tops[where] = some.values[:, :most]
        return some.sure >= wanted[where]

    solve(values, most, attempt)
    place = torch.arange(most, device=ids.device)
    absent = (place >= wanted.unsqueeze(1)) | (tops == -torch.inf)
    return ids.masked_fill_(absent, -1), tops
