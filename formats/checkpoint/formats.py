"""How tensors are stored: the formats of GGUF and safetensors and the bytes they take."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class Format:
    """A storage format.

    Attributes:
        name: What messages and plugins call it, such as `bf16` or `q4_1`.
        block: Consecutive elements of a row that are stored together.
        block_bytes: Bytes of such a block.
    """

    name: str
    block: int
    block_bytes: int

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of `shape`, whose rows are whole blocks."""
        return prod(shape) // self.block * self.block_bytes


# name, elements of a block, bytes of a block. GGML writes the number of the type into the file.
_GGML = {
    0: Format("f32", 1, 4),
    1: Format("f16", 1, 2),
    2: Format("q4_0", 32, 18),
    3: Format("q4_1", 32, 20),
    6: Format("q5_0", 32, 22),
    7: Format("q5_1", 32, 24),
    8: Format("q8_0", 32, 34),
    9: Format("q8_1", 32, 40),
    10: Format("q2_k", 256, 84),
    11: Format("q3_k", 256, 110),
    12: Format("q4_k", 256, 144),
    13: Format("q5_k", 256, 176),
    14: Format("q6_k", 256, 210),
    15: Format("q8_k", 256, 292),
    16: Format("iq2_xxs", 256, 66),
    17: Format("iq2_xs", 256, 74),
    18: Format("iq3_xxs", 256, 98),
    19: Format("iq1_s", 256, 50),
    20: Format("iq4_nl", 32, 18),
    21: Format("iq3_s", 256, 110),
    22: Format("iq2_s", 256, 82),
    23: Format("iq4_xs", 256, 136),
    24: Format("i8", 1, 1),
    25: Format("i16", 1, 2),
    26: Format("i32", 1, 4),
    27: Format("i64", 1, 8),
    28: Format("f64", 1, 8),
    29: Format("iq1_m", 256, 56),
    30: Format("bf16", 1, 2),
    34: Format("tq1_0", 256, 54),
    35: Format("tq2_0", 256, 66),
    39: Format("mxfp4", 32, 17),
    40: Format("nvfp4", 64, 36),
    41: Format("q1_0", 128, 18),
}

_PLAIN = (
    Format("f8_e4m3", 1, 1),
    Format("f8_e5m2", 1, 1),
    Format("u8", 1, 1),
    Format("u16", 1, 2),
    Format("u32", 1, 4),
    Format("u64", 1, 8),
    Format("bool", 1, 1),
)

FORMATS: dict[str, Format] = {format.name: format for format in (*_GGML.values(), *_PLAIN)}
"""Every format by name."""

GGML_FORMATS: dict[int, Format] = _GGML
"""Formats by the number that a GGUF file uses."""

SAFETENSORS_FORMATS: dict[str, Format] = {
    name.upper(): FORMATS[name]
    for name in (
        *("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2"),
        *("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"),
    )
}
"""Formats by the word that a safetensors header uses."""
