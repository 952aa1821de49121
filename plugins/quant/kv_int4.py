"""Keys and values in 4-bit integers, two in a byte.

Source: Sheng et al., "FlexGen", arXiv 2303.06865, section 5, quantises the cache to 4 bits with a
minimum and a range for each group; here a group is one head of one token.
"""

from __future__ import annotations

from functools import cache

import torch

from .kv_scaled import Coded, ScaledKV, look_up, table_of, whole

CENTRE, LARGEST = 8.0, 15.0


class Int4KV(ScaledKV):
    """An element is `(code - 8) * scale + zero`, of codes 0 to 15 between smallest and largest.

    Elements 2 i and 2 i + 1 are the low and the high half of byte i, so that a kernel unpacks
    within its registers. `zero` is the second of the two scales.
    """

    name = "int4"
    code = "uint8"
    packed = 2
    together = 2
    scales = 2

    def encode(self, x: torch.Tensor) -> Coded:
        """See `ScaledKV.encode`."""
        low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        scale = ((high - low) / LARGEST).half()
        zero = (low + CENTRE * scale.float()).half()
        codes = (x - zero.float()) / whole(scale) + (CENTRE + 0.5)
        codes = codes.floor().clamp(0, LARGEST).nan_to_num(0.0).to(torch.uint8)
        return codes[..., 0::2] | (codes[..., 1::2] << 4), torch.cat((scale, zero), dim=-1)

    def decode(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """See `ScaledKV.decode`."""
        return look_up(codes, pairs(codes.device)).mul_(scales[..., :1]).add_(scales[..., 1:])


@cache
def pairs(device: torch.device) -> torch.Tensor:
    """Return both numbers of each byte, around zero."""
    every = torch.arange(256)
    return table_of(torch.stack((every & 15, every >> 4), dim=-1).float() - CENTRE).to(device)
