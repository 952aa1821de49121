"""Checkpoint tensors made in memory, in the formats that files have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from camshaft.checkpoint import CheckpointTensor

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 32
_PLAIN = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def stored_tensor(
    name: str, values: torch.Tensor, format: str = "f32", file: str = "toy.gguf"
) -> CheckpointTensor:
    """Return `values` as a file would hold them.

    Args:
        name: In the file.
        values: float32; rows of packed formats are whole blocks of 32.
        format: `f32`, `f16`, `bf16`, `q4_0`, `q4_1` or `q8_0`. The last three round `values`:
            `CheckpointTensor.dequantize` tells what was kept. `blocks` makes other formats.
        file: For messages.
    """
    if format in _PLAIN:
        data = values.to(_PLAIN[format], copy=True).contiguous().view(torch.uint8)
    else:
        data = _PACKERS[format](values.reshape(-1, BLOCK))
    shape = tuple(values.shape)
    return CheckpointTensor(name, shape, format, data.reshape(-1).numpy(), Path(file))


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.float16).contiguous().view(torch.uint8)


def _nibbles(quants: torch.Tensor) -> torch.Tensor:
    half = quants.to(torch.uint8)
    return half[:, : BLOCK // 2] | half[:, BLOCK // 2 :] << 4


def _quants(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    stored = scale.half().float()
    divisor = torch.where(stored == 0, torch.ones_like(stored), stored)
    return torch.round(values / divisor)


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    scale = blocks.abs().amax(1, keepdim=True) / 7
    return torch.cat((_bytes(scale), _nibbles((_quants(blocks, scale) + 8).clamp(0, 15))), dim=1)


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    least, most = blocks.aminmax(dim=1, keepdim=True)
    scale = (most - least) / 15
    quants = _quants(blocks - least.half().float(), scale).clamp(0, 15)
    return torch.cat((_bytes(scale), _bytes(least), _nibbles(quants)), dim=1)


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    scale = blocks.abs().amax(1, keepdim=True) / 127
    quants = _quants(blocks, scale).clamp(-127, 127).to(torch.int8)
    return torch.cat((_bytes(scale), quants.view(torch.uint8)), dim=1)


_PACKERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q8_0": _q8_0,
}
