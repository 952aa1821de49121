"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeInt, PositiveInt

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class NoneSettings(Settings):
    """Settings of the quantizer `none`: none."""


class GgufSettings(Settings):
    """Settings of the quantizer `gguf`."""

    kernels: Literal["auto", "native", "torch"] = "auto"
    """What multiplies in bfloat16: `native`, compiled for this processor, takes all packed formats
    with activations of 8 bits; `torch` takes those of 4 bits with activations as they are. `auto`
    is `native` where `engine doctor` finds it."""
    keep_bf16: bool | Literal["auto"] = "auto"
    """Keep a bfloat16 copy of packed weights beside them, for steps with many rows. It takes four
    times the packed weights' memory. `auto` keeps one with `torch`, whose prompts become twice as
    fast, and with `native` where bfloat16 products of many rows were measured to be faster."""
    packed_rows: PositiveInt | Literal["auto"] = "auto"
    """Most rows of a step that packed weights compute when there is such a copy; `auto` is 4 with
    `torch`, and with `native` what was measured."""
    per_channel_rows: NonNegativeInt = 64
    """From how many rows of a step on `native` multiplies with weights that it has rounded to 8
    bits with one scale for each of their rows, as it goes: a fifth faster. 0 is never; so is any
    number where results must not depend on the batch."""


class KVNoneSettings(Settings):
    """Settings of the kv_quant `none`: none."""


class Fp8KVSettings(Settings):
    """Settings of the kv_quant `fp8`: none."""


class Int8KVSettings(Settings):
    """Settings of the kv_quant `int8`: none."""


class Int4KVSettings(Settings):
    """Settings of the kv_quant `int4`: none."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="quant",
            name="none",
            implementation="camshaft.plugins.quant.none:Unquantized",
            settings=NoneSettings,
            summary="weights in the dtype of activations, whatever form the file has",
        ),
        Component(
            kind="quant",
            name="gguf",
            implementation="camshaft.plugins.quant.gguf:Gguf",
            settings=GgufSettings,
            summary="weights of GGUF files, kept packed; on CPUs",
        ),
        Component(
            kind="kv_quant",
            name="none",
            implementation="camshaft.plugins.quant.kv_none:PlainKV",
            settings=KVNoneSettings,
            summary="keys and values in the dtype of activations",
        ),
        Component(
            kind="kv_quant",
            name="fp8",
            implementation="camshaft.plugins.quant.kv_fp8:Fp8KV",
            settings=Fp8KVSettings,
            summary="keys and values in 8-bit floats (e4m3), a scale for each token and head",
        ),
        Component(
            kind="kv_quant",
            name="int8",
            implementation="camshaft.plugins.quant.kv_int8:Int8KV",
            settings=Int8KVSettings,
            summary="keys and values in 8-bit integers, a scale for each token and head",
        ),
        Component(
            kind="kv_quant",
            name="int4",
            implementation="camshaft.plugins.quant.kv_int4:Int4KV",
            settings=Int4KVSettings,
            summary="keys and values in 4-bit integers, scale and zero for each token and head",
        ),
    ]
