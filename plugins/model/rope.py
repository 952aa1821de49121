"""Rotary positions and the ways in which they were stretched to longer contexts.

Sources: Su et al., "RoFormer", arXiv 2104.09864; Peng et al., "YaRN", arXiv 2309.00071, section 3;
Llama 3.1 for `llama3`, which treats slow and fast frequencies apart and blends between.
`dynamic` and `longrope` are left out: their frequencies change when a sequence outgrows the
original context, so keys that are already in pages would be wrong.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from camshaft.contracts.attention import Rope as RopeTables

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.checkpoint import ModelConfig, Rope


def rotated_width(config: ModelConfig) -> int:
    """Return how many leading elements of a head are rotated."""
    return int(config.head_dim * config.rope.rotary_share)


def rope_faults(config: ModelConfig) -> list[str]:
    """Return why the positions of a model cannot be computed."""
    rope, width = config.rope, rotated_width(config)
    faults = []
    if rope.kind not in _FREQUENCIES:
        faults.append(
            f"rope '{rope.kind}' is not implemented; {', '.join(sorted(_FREQUENCIES))} are"
        )
    if width % 2 or width < 2:
        faults.append(f"{width} of {config.head_dim} elements of a head cannot rotate in pairs")
    if rope.kind == "divisors" and len(rope.divisors) != width // 2:
        faults.append(f"{len(rope.divisors)} rope divisors do not fit {width // 2} frequencies")
    if rope.kind in ("linear", "llama3", "yarn") and rope.factor is None:
        faults.append(f"rope '{rope.kind}' has no factor")
    if rope.kind in ("llama3", "yarn") and rope.original_context is None:
        faults.append(f"rope '{rope.kind}' does not say which context it stretches")
    if rope.kind == "llama3" and (rope.low_freq_factor is None or rope.high_freq_factor is None):
        faults.append("rope 'llama3' lacks its two frequency factors")
    return faults


def rope_tables(config: ModelConfig, positions: int, device: str) -> RopeTables:
    """Return cosines and sines of positions 0 ... `positions - 1`, [positions, rotated / 2]."""
    width = rotated_width(config)
    powers = torch.arange(0, width, 2, dtype=torch.float64) / width
    plain = config.rope.theta**-powers
    frequencies = _FREQUENCIES[config.rope.kind](plain, config.rope).float()
    angles = torch.arange(positions).float()[:, None] * frequencies
    share = attention_factor(config.rope)
    return RopeTables((angles.cos() * share).to(device), (angles.sin() * share).to(device))


def attention_factor(rope: Rope) -> float:
    """Return what YaRN multiplies cosines and sines with; 1 for all others."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    assert rope.factor is not None
    if rope.mscale and rope.mscale_all_dim:
        return _temper(rope.factor, rope.mscale) / _temper(rope.factor, rope.mscale_all_dim)
    return _temper(rope.factor, 1.0)


def _temper(factor: float, weight: float) -> float:
    """YaRN's equation 22, with DeepSeek's weight on the logarithm."""
    return 1.0 if factor <= 1 else 1.0 + 0.1 * weight * math.log(factor)


def _default(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    return plain


def _linear(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    assert rope.factor is not None
    return plain / rope.factor


def _divisors(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    return plain / torch.tensor(rope.divisors, dtype=torch.float64)


def _llama3(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    assert rope.factor is not None
    assert rope.original_context is not None
    assert rope.low_freq_factor is not None
    assert rope.high_freq_factor is not None
    # How often a frequency turns within the original context decides: seldom turning ones are
    # slowed down, often turning ones are left alone, those between get a share of both.
    turns = plain * rope.original_context / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * (kept + (1 - kept) / rope.factor)


def _yarn(plain: torch.Tensor, rope: Rope) -> torch.Tensor:
    assert rope.factor is not None
    assert rope.original_context is not None
    count = len(plain)
    context = rope.original_context

    def place(turns: float) -> float:
        """The index of the frequency that turns so often within the original context."""
        return count * math.log(context / (turns * 2 * math.pi)) / math.log(rope.theta)

    first, last = place(rope.beta_fast), place(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * count - 1)
    spread = last - first or 0.001
    slowed = ((torch.arange(count, dtype=torch.float64) - first) / spread).clamp(0, 1)
    return plain * (1 - slowed + slowed / rope.factor)


_FREQUENCIES: dict[str, Callable[[torch.Tensor, Rope], torch.Tensor]] = {
    "default": _default,
    "linear": _linear,
    "divisors": _divisors,
    "llama3": _llama3,
    "yarn": _yarn,
}
