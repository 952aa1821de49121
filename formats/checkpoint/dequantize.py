"""Stored formats to torch tensors.

Block layouts as in ggml's `ggml-common.h` and the GGUF specification: a block starts with its
float16 scale, then (for the `_1` formats) its float16 minimum, then the quants. 4-bit quants come
in 16 bytes, whose low halves are elements 0-15 and whose high halves are elements 16-31.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.errors import CheckpointError

from .formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tensor import CheckpointTensor

_PLAIN = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}


def dequantize(tensor: CheckpointTensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """See `CheckpointTensor.dequantize`."""
    wanted = torch.float32 if dtype is None else dtype
    stored = torch.from_numpy(tensor.data)
    if tensor.format in _PLAIN:
        # A view needs its bytes aligned to the element; safetensors files may start anywhere.
        element = FORMATS[tensor.format].block_bytes
        aligned = stored if stored.data_ptr() % element == 0 else stored.clone()
        return aligned.view(_PLAIN[tensor.format]).view(tensor.shape).to(wanted)
    decode = _DECODERS.get(tensor.format)
    if decode is None:
        known = ", ".join(sorted((*_PLAIN, *_DECODERS)))
        raise CheckpointError(
            f"{tensor.file}: tensor '{tensor.name}' is stored as {tensor.format}, which has no "
            f"decoder; {known} have. Convert the model to one of these."
        )
    blocks = stored.view(-1, FORMATS[tensor.format].block_bytes)
    return decode(blocks).view(tensor.shape).to(wanted)


def _halves(packed: torch.Tensor) -> torch.Tensor:
    """Spread uint8 `[N, 16]` into quants 0-15, float32 `[N, 32]`."""
    return torch.cat((packed & 15, packed >> 4), dim=1).float()


def _floats(stored: torch.Tensor) -> torch.Tensor:
    """Read uint8 `[N, 2k]` as k float16 columns, float32 `[N, k]`."""
    return stored.contiguous().view(torch.float16).float()


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return _floats(blocks[:, :2]) * (_halves(blocks[:, 2:]) - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = _floats(blocks[:, :4]).unsqueeze(2).unbind(1)
    return _halves(blocks[:, 4:]).mul_(scale).add_(minimum)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(_floats(blocks[:, :2]))


_DECODERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q8_0": _q8_0,
}
