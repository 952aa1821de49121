"""Random numbers that are a function of a seed and a count: no state, no order of calls.

Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
section 4 (SplitMix64), with the finaliser that its authors took from Stafford's "mix13". Departure:
the seed goes through the finaliser too, so that seeds 1, 2, 3 start streams far apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def stream_keys(seeds: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the key of each seed's stream.

    Args:
        seeds: [A, 2] low and high half of a 64-bit seed.
    """
    state = np.ascontiguousarray(seeds).view(np.uint64).reshape(-1) + np.uint64(GAMMA)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(MIX_1)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(MIX_2)
    return (state ^ (state >> np.uint64(31))).view(np.int64)


def uniforms(keys: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return number `index` of each stream, float64 [N] in [0, 1).

    Args:
        keys: int64 [N], of `stream_keys`.
        index: int64 [N], from 0.
    """
    state = keys + (index + 1) * _signed(GAMMA)
    state = (state ^ _shift_right(state, 30)) * _signed(MIX_1)
    state = (state ^ _shift_right(state, 27)) * _signed(MIX_2)
    state = state ^ _shift_right(state, 31)
    return _shift_right(state, 11).to(torch.float64) * 2.0**-53


def _signed(word: int) -> int:
    """Return the int64 with the bits of a 64-bit `word`; torch multiplies int64 modulo 2**64."""
    return word - 2**64 if word >= 2**63 else word


def _shift_right(state: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift in zeros; torch's own shift of int64 copies the sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
