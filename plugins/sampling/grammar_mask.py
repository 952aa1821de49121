"""Grammar masks: bits of allowed tokens, packed by 32."""

from __future__ import annotations

import numpy as np
import torch

from .upload import upload


class GrammarMask:
    """Forbids the tokens without a bit, by a table of what each byte of bits adds to 8 logits.

    Adding looked-up numbers is four times as fast on a CPU as unpacking bits and filling.
    """

    def __init__(self, device: torch.device) -> None:
        byte, bit = np.arange(256)[:, None], np.arange(8)
        table = np.where(byte >> bit & 1, 0, -np.inf).astype(np.float32)
        self._table = upload(table, device)

    def apply(self, logits: torch.Tensor, bits: torch.Tensor) -> None:
        """Set the logits of forbidden tokens to minus infinity.

        Args:
            logits: float32 [Q, V].
            bits: int32 [Q, ceil(V / 32)]; token i is bit i % 32 of word i // 32.
        """
        # the first byte of a word holds its lowest bits on every machine that torch runs on
        octets = bits.contiguous().view(torch.uint8).to(torch.int32).flatten()
        change = self._table.index_select(0, octets).view(len(bits), -1)
        logits.add_(change[:, : logits.shape[1]])
