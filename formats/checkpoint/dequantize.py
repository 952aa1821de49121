"""Stored formats to torch tensors.

Block layouts as in ggml's `ggml-common.h` and the GGUF specification: a block starts with its
float16 scale, then (for the `_1` formats) its float16 minimum, then the quants. 4-bit quants come
in 16 bytes, whose low halves are elements 0-15 and whose high halves are elements 16-31; in
front of them the 5-bit formats have the fifth bits of all 32, lowest bit first. Quants of `iq4_nl`
are places in a table. Blocks of 256 are in `k_quants`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.errors import CheckpointError

from .formats import FORMATS
from .k_quants import K_DECODERS, floats

if TYPE_CHECKING:
    from collections.abc import Callable

    from .tensor import CheckpointTensor

    Decoder = Callable[[torch.Tensor], torch.Tensor]

_PLAIN = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
_PLACES = torch.arange(32, dtype=torch.int32)
_AT_ONCE = 2**18  # weights: 1 MiB in float32
# What a 4-bit quant of iq4_nl stands for.
NONLINEAR = torch.tensor(
    (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), dtype=torch.float32
)


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
        raise CheckpointError(
            f"{tensor.file}: tensor '{tensor.name}' is stored as {tensor.format}, which has no "
            f"decoder; {', '.join(sorted(DECODED))} have. Convert the model to one of these."
        )
    blocks = stored.view(-1, FORMATS[tensor.format].block_bytes)
    return _decoded(blocks, decode, FORMATS[tensor.format].block, wanted).view(tensor.shape)


def _decoded(blocks: torch.Tensor, decode: Decoder, block: int, dtype: torch.dtype) -> torch.Tensor:
    """Decode a few blocks at a time, so that what is between them and the result stays in cache."""
    at_once = _AT_ONCE // block
    if len(blocks) <= at_once:
        return decode(blocks).to(dtype)
    values = torch.empty(len(blocks), block, dtype=dtype)
    for start in range(0, len(blocks), at_once):
        part = values[start : start + at_once]
        part.copy_(decode(blocks[start : start + at_once]).view(part.shape))
    return values


def halves(packed: torch.Tensor) -> torch.Tensor:
    """Spread uint8 `[N, 16]` into quants 0-15, uint8 `[N, 32]`."""
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return floats(blocks[:, :2]) * (halves(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = floats(blocks[:, :4]).unsqueeze(2).unbind(1)
    return halves(blocks[:, 4:]).float().mul_(scale).add_(minimum)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8).float().mul_(floats(blocks[:, :2]))


def five_bits(stored: torch.Tensor) -> torch.Tensor:
    """Join uint8 `[N, 4 + 16]` into quants 0-31, uint8 `[N, 32]`."""
    fifth = (stored[:, :4].contiguous().view(torch.int32) >> _PLACES & 1).to(torch.uint8)
    return halves(stored[:, 4:]).bitwise_or_(fifth << 4)


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    quants = five_bits(blocks[:, 2:]).view(torch.int8) - 16
    return quants.float().mul_(floats(blocks[:, :2]))


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    scale, minimum = floats(blocks[:, :4]).unsqueeze(2).unbind(1)
    return five_bits(blocks[:, 4:]).float().mul_(scale).add_(minimum)


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return NONLINEAR[halves(blocks[:, 2:]).int()].mul_(floats(blocks[:, :2]))


_DECODERS: dict[str, Decoder] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "iq4_nl": _iq4_nl,
    **K_DECODERS,
}

DECODED = (*_PLAIN, *_DECODERS)
"""The formats that `dequantize` reads."""
