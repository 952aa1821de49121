"""K-quants: blocks of 256 weights, cut into groups with small scales of their own.

Block layouts as in ggml's `ggml-common.h`. The scales of the groups are integers of 4 to 8 bits,
which one or two float16 numbers of the block multiply:

    weight = (scale * group scale) * quant  [- (minimum scale * group minimum)]

    type  groups   quant                bytes of a block, in order
    q2_k  16 x 16  2 bits               scales and minima 16, quants 64, two floats 4
    q3_k  16 x 16  2 + 1 bits, less 4   third bits 32, quants 64, scales 12, float 2
    q4_k   8 x 32  4 bits               two floats 4, scales and minima 12, quants 128
    q5_k   8 x 32  4 + 1 bits           as q4_k, with the fifth bits 32 in front of the quants
    q6_k  16 x 16  4 + 2 bits, less 32  quants 128, upper bits 64, scales 16, float 2

Products and differences are rounded in this order, so that values equal the reference's to the bit.
N blocks in all shapes below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


def floats(stored: torch.Tensor) -> torch.Tensor:
    """Read uint8 `[N, 2k]` as k float16 columns, float32 `[N, k]`."""
    return stored.contiguous().view(torch.float16).float()


def q4_k_parts(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take blocks of q4_k apart: a weight is its quant times a scale, less a minimum.

    Args:
        blocks: uint8 `[N, 144]`.

    Returns:
        Quants 0-15, uint8 `[N, 256]`; of the 8 groups of 32 scales and minima, float32 `[N, 8]`.
    """
    return _spread(blocks[:, 16:], 4, 32), *_scales_and_minima(blocks)


def _scales_and_minima(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what multiplies quants and what is subtracted in q4_k and q5_k, float32 `[N, 8]`."""
    scale, minimum = floats(blocks[:, :4]).unsqueeze(2).unbind(1)
    # 6 bits each, of groups 0-3 (a) and 4-7 (b):   scales   minima   both
    #                                               bbaaaaaa bbaaaaaa mmmmssss, of b its low 4
    first, second, low = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scales = torch.cat((first & 63, (low & 15) | (first >> 2 & 48)), dim=1)
    minima = torch.cat((second & 63, low >> 4 | (second >> 2 & 48)), dim=1)
    return scales.float().mul_(scale), minima.float().mul_(minimum)


def _spread(packed: torch.Tensor, bits: int, width: int) -> torch.Tensor:
    """Take `width` bytes at a time apart: all their lowest bits come first, then the next.

    uint8 `[N, bytes]` becomes uint8 `[N, bytes * 8 / bits]`.
    """
    runs = packed.reshape(len(packed), -1, width)
    shifted = [runs >> shift for shift in range(0, 8, bits)]
    return torch.stack(shifted, dim=2).bitwise_and_((1 << bits) - 1).view(len(packed), -1)


def _scaled(quants: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Return quants `[N, 256]` times the scales of their groups `[N, groups]`, in float32."""
    groups = quants.view(len(quants), scales.shape[1], -1)
    return groups.float().mul_(scales.unsqueeze(2))


def q2_k_parts(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take blocks `[N, 84]` of q2_k apart, as `q4_k_parts` does; 16 groups of 16, quants 0-3."""
    packed = blocks[:, :16]
    scale, minimum = floats(blocks[:, 80:]).unsqueeze(2).unbind(1)
    scales, minima = (packed & 15).float().mul_(scale), (packed >> 4).float().mul_(minimum)
    return _spread(blocks[:, 16:80], 2, 32), scales, minima


def q3_k_parts(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take blocks `[N, 110]` of q3_k apart: quants 0-7, 4 more than they mean, and scales."""
    low, high = _spread(blocks[:, 96:104], 4, 8), _spread(blocks[:, 104:108], 2, 4)
    scales = ((low | high << 4).view(torch.int8) - 32).float().mul_(floats(blocks[:, 108:]))
    third = _spread(blocks[:, :32], 1, 32)
    return _spread(blocks[:, 32:96], 2, 32) | third << 2, scales


def q5_k_parts(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Take blocks `[N, 176]` of q5_k apart, as `q4_k_parts` does; quants 0-31."""
    scales, minima = _scales_and_minima(blocks)
    fifth = _spread(blocks[:, 16:48], 1, 32)
    quants = _spread(blocks[:, 48:], 4, 32).bitwise_or_(fifth << 4)
    return quants, scales, minima


def q6_k_parts(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Take blocks `[N, 210]` of q6_k apart: quants 0-63, 32 more than they mean, and scales."""
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float().mul_(floats(blocks[:, 208:]))
    upper = _spread(blocks[:, 128:192], 2, 32)
    return _spread(blocks[:, :128], 4, 64).bitwise_or_(upper << 4), scales


def _less_minima(parts: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    quants, scales, minima = parts
    return _scaled(quants, scales).sub_(minima.unsqueeze(2))


def _less(parts: tuple[torch.Tensor, torch.Tensor], less: int) -> torch.Tensor:
    quants, scales = parts
    return _scaled(quants.view(torch.int8) - less, scales)


K_DECODERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "q2_k": lambda blocks: _less_minima(q2_k_parts(blocks)),
    "q3_k": lambda blocks: _less(q3_k_parts(blocks), 4),
    "q4_k": lambda blocks: _less_minima(q4_k_parts(blocks)),
    "q5_k": lambda blocks: _less_minima(q5_k_parts(blocks)),
    "q6_k": lambda blocks: _less(q6_k_parts(blocks), 32),
}
"""By format: uint8 `[N, bytes of a block]` to float32, 256 for each block in order."""
