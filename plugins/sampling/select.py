"""Selection of a row's best entries by weight: no sort, no wait, the same work for any row.

Source: radix selection of the k-th largest, from the highest digit down, as in Alabi et al., "Fast
k-Selection Algorithms for Graphics Processing Units", ACM JEA 17, 2012. Departure: entries have
weights, which are counts for top-k and probabilities for top-p.
"""

from __future__ import annotations

import torch

DIGITS = ((21, 11), (10, 11), (0, 10))
"""(shift, bits) of the three digits of a 32-bit key, highest first."""


def sort_keys(values: torch.Tensor) -> torch.Tensor:
    """Return int32 keys [N, M] in the order of float32 `values`; equal values get equal keys."""
    bits = (values + 0.0).view(torch.int32)  # the addition makes -0.0 equal to 0.0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def keep_best(
    mass: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, need: torch.Tensor
) -> None:
    """Zero the mass of all entries but the best ones that together weigh at least `need`.

    The best entry has the highest key and, among equal keys, the lowest index.

    Args:
        mass: int64 [N, M], changed in place; may be `weights` itself.
        keys: int32 [N, M].
        weights: int64 [N, M], not negative. Among equal keys equal, but for zeros at the end.
        need: int64 [N], from 1 to the sum of the row's weights, which is below 2**62.
    """
    last, rest = _threshold(keys, weights, need)
    last = last.unsqueeze(1)
    # comparisons that write numbers are four times as fast on a CPU as those that write bool
    tied = torch.eq(keys, last, out=torch.empty_like(keys))
    weight = tied.to(torch.int64).mul_(weights).amax(dim=1).clamp_(min=1)
    needed = ((rest + weight - 1) // weight).clamp_(max=keys.shape[1]).to(torch.int32).unsqueeze(1)
    place = tied.cumsum(dim=1, dtype=torch.int32)
    tied.mul_(torch.le(place, needed, out=torch.empty_like(keys)))
    mass.mul_(tied.add_(torch.gt(keys, last, out=place)).to(torch.int64))


def _threshold(
    keys: torch.Tensor, weights: torch.Tensor, need: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the lowest key needed, int32 [N], and the weight needed of its entries, int64 [N]."""
    prefix = torch.zeros_like(need)
    for shift, bits in DIGITS:
        size = 1 << bits
        digit = (keys >> shift) & (size - 1)
        if shift + bits == 32:
            place = digit ^ (size >> 1)  # negative keys come first
            start = 0
        else:
            # three tables: of keys below the prefix, with the prefix, and above it
            side = (keys >> (shift + bits)).sub_(prefix.to(torch.int32).unsqueeze(1)).clamp_(-1, 1)
            place = side.add_(1).mul_(size).add_(digit)
            start = size
        table = weights.new_zeros((len(keys), size + 2 * start))
        table.scatter_add_(1, place.to(torch.int64), weights)
        falling = table[:, start : start + size].flip(1)
        running = falling.cumsum(dim=1)
        at = torch.searchsorted(running, need.unsqueeze(1)).clamp_(max=size - 1)
        need = need - (running.gather(1, at) - falling.gather(1, at)).squeeze(1)
        found = size - 1 - at.squeeze(1)
        prefix = (prefix << bits) + (found if start else found - (size >> 1))
    return prefix.to(torch.int32), need
