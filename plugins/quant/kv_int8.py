"""Keys and values in 8-bit integers.

Source: symmetric absolute-maximum quantisation, as in Dettmers et al., "LLM.int8()", arXiv
2208.07339, of each head's vector by itself.
"""

from __future__ import annotations

import torch

from .kv_scaled import Coded, ScaledKV, whole

LARGEST = 127.0


class Int8KV(ScaledKV):
    """Codes of -127 to 127: every element keeps the same absolute error."""

    name = "int8"
    code = "int8"

    def encode(self, x: torch.Tensor) -> Coded:
        """See `ScaledKV.encode`."""
        scales = (x.abs().amax(-1, keepdim=True) / LARGEST).half()
        codes = (x / whole(scales) + 0.5).floor().clamp(-LARGEST, LARGEST)
        return codes.nan_to_num(0.0).to(torch.int8), scales

    def decode(self, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """See `ScaledKV.decode`."""
        return codes * scales
