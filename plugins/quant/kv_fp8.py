"""Keys and values in 8-bit floats: four bits of exponent, three of mantissa.

Source: Micikevicius et al., "FP8 Formats for Deep Learning", arXiv 2209.05433. The scale of a head
maps its largest element to the largest number of the format.
"""

from __future__ import annotations

from functools import cache

import torch

from .kv_scaled import Coded, ScaledKV, look_up, table_of, whole

LARGEST = 448.0


class Fp8KV(ScaledKV):
    """e4m3 codes: every element keeps about the same relative error, 2 % on average."""

    name = "fp8"
    code = "float8_e4m3fn"
    together = 2

    def encode(self, x: torch.Tensor) -> Coded:
        """See `ScaledKV.encode`."""
        scales = (x.abs().amax(-1, keepdim=True) / LARGEST).half()
        # beyond the largest number torch's conversion gives NaN instead of it
        codes = (x / whole(scales)).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        return codes, scales

    def decode(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """See `ScaledKV.decode`."""
        table = pairs(codes.device)
        return look_up(codes.contiguous().view(torch.uint16), table).mul_(scales)


@cache
def pairs(device: torch.device) -> torch.Tensor:
    """Return both numbers of any two neighbouring codes."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    low, high = every.repeat(256), every.repeat_interleave(256)  # bytes lie low first
    return table_of(torch.stack((low, high), dim=-1)).to(device)
