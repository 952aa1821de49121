"""Tensors of packed formats out of random bytes, for formats that nothing here packs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from camshaft.checkpoint import CheckpointTensor
from camshaft.checkpoint.formats import FORMATS


class _Floats(NamedTuple):
    """Where the float16 numbers of a block are, and what makes its weights about 0.1."""

    place: int
    scale: float
    minimum: float | None = None


# A minimum is what its scale makes of a middling quant, so that weights lie around 0.
_FLOATS = {
    "q4_0": _Floats(0, 2**-6),
    "q4_1": _Floats(0, 2**-6, -7.5 * 2**-6),
    "q5_0": _Floats(0, 2**-7),
    "q5_1": _Floats(0, 2**-7, -15.5 * 2**-7),
    "q8_0": _Floats(0, 2**-10),
    "iq4_nl": _Floats(0, 2**-10),
    "q2_k": _Floats(80, 2**-7, 1.5 * 2**-7),
    "q3_k": _Floats(108, 2**-9),
    "q4_k": _Floats(0, 2**-11, 7.5 * 2**-11),
    "q5_k": _Floats(0, 2**-12, 15.5 * 2**-12),
    "q6_k": _Floats(208, 2**-14),
}


def random_blocks(
    name: str, format: str, shape: tuple[int, ...], seed: int = 0, file: str = "toy.gguf"
) -> CheckpointTensor:
    """Return a tensor whose bytes are random but for the scales, which make weights about 0.1.

    Args:
        name: In the file.
        format: A packed format of GGUF files: `q4_0`, `q4_1`, `q5_0`, `q5_1`, `q8_0`, `iq4_nl`, or
            `q2_k` to `q6_k`. What its bytes mean is what `CheckpointTensor.dequantize` says.
        shape: Outermost first; rows are whole blocks.
        seed: Of the bytes.
        file: For messages.
    """
    size, floats, drawn = FORMATS[format], _FLOATS[format], np.random.default_rng(seed)
    count = size.nbytes(shape) // size.block_bytes
    blocks = drawn.integers(0, 256, (count, size.block_bytes), np.uint8)
    spread = drawn.uniform(0.5, 1.5, count)
    values = (floats.scale,) if floats.minimum is None else (floats.scale, floats.minimum)
    stored = np.outer(spread, values).astype(np.float16).view(np.uint8)
    blocks[:, floats.place : floats.place + stored.shape[1]] = stored
    return CheckpointTensor(name, shape, format, blocks.reshape(-1), Path(file))
