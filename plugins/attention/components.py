"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from camshaft.component import Component, Settings
from camshaft.facts import Capability
from camshaft.hooks import hookimpl


class ReferenceSettings(Settings):
    """Settings of `reference`: none."""


class SdpaSettings(Settings):
    """Settings of `sdpa`: none."""


class NativeSettings(Settings):
    """Settings of `native`: none."""


class CpuSettings(Settings):
    """Settings of `cpu`: none."""


class TritonSettings(Settings):
    """Settings of `triton`."""

    splits: PositiveInt = Field(default=128, le=128)
    """Most pieces that the keys of a request are cut into while it decodes; 1 cuts nothing."""
    split_tokens: PositiveInt = Field(default=8, le=16)
    """Requests with up to so many query tokens, such as drafts, are cut as well."""
    cascade: bool = True
    """Read a prefix that many decoding requests share once for all of them."""
    cascade_bytes: PositiveInt = 32 * 2**20
    """Fewest bytes of keys and values a layer that this must spare, to be worth two kernels."""
    fuse_prepare: bool = True
    """Norm, rotate and store in one kernel, in place of the chosen ops and a copy."""
    prepare_in_decode: bool = True
    """Leave that to the decode kernel in steps of a few requests with a single token each."""
    merge_in_decode: bool = True
    """Merge pieces of a request's keys in the decode kernel, in place of one more kernel."""
    early_launch: bool | None = None
    """Lets kernels of short steps start while the kernel before them ends, on NVIDIA from Hopper
    on; null is wherever the device can.
    """


class CudnnSettings(TritonSettings):
    """Settings of `cudnn`: those of `triton`, and one more."""

    least_tokens: int = Field(default=2048, ge=1024)
    """Requests with fewer new tokens in a step run the kernels of `triton`."""


class InvariantSettings(Settings):
    """Settings of `invariant`: none."""


class FlexSettings(Settings):
    """Settings of `flex`."""

    fused: bool = True
    """Compile the scores' function into a kernel, on accelerators. Off, it can be debugged."""


class FlashInferSettings(Settings):
    """Settings of `flashinfer`."""

    workspace_bytes: PositiveInt = 128 * 2**20
    """Device memory for the partial results of split requests."""


class FlashAttnSettings(Settings):
    """Settings of `flash_attn`: none."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="attention",
            name="reference",
            implementation="camshaft.plugins.attention.reference:ReferenceAttention",
            settings=ReferenceSettings,
            summary="one token at a time, independent of the batch: the slow twin of all others",
        ),
        Component(
            kind="attention",
            name="sdpa",
            implementation="camshaft.plugins.attention.sdpa:SdpaAttention",
            settings=SdpaSettings,
            summary="torch's scaled dot product attention over gathered pages",
        ),
        Component(
            kind="attention",
            name="native",
            implementation="camshaft.plugins.attention.native:NativeAttention",
            settings=NativeSettings,
            summary="compiled operations for CPUs over pages, independent of the batch",
        ),
        Component(
            kind="attention",
            name="cpu",
            implementation="camshaft.plugins.attention.cpu:CpuAttention",
            settings=CpuSettings,
            summary="`native` where it can serve a model on this machine, else `sdpa`",
        ),
        Component(
            kind="attention",
            name="triton",
            implementation="camshaft.plugins.attention.triton:TritonAttention",
            settings=TritonSettings,
            summary="paged kernels for accelerators: split decode, tiled prefill",
            needs=frozenset({Capability.TRITON}),
        ),
        Component(
            kind="attention",
            name="invariant",
            implementation="camshaft.plugins.attention.invariant:InvariantAttention",
            settings=InvariantSettings,
            summary="the tile kernel of triton for every token: independent of the batch",
            needs=frozenset({Capability.TRITON}),
        ),
        Component(
            kind="attention",
            name="cudnn",
            implementation="camshaft.plugins.attention.cudnn:CudnnAttention",
            settings=CudnnSettings,
            summary="cuDNN for long prompts over the pages of triton; triton for the rest",
            needs=frozenset({Capability.CUDA, Capability.TRITON}),
        ),
        Component(
            kind="attention",
            name="flex",
            implementation="camshaft.plugins.attention.flex:FlexAttention",
            settings=FlexSettings,
            summary="torch's flex_attention: for subclasses with their own change to the scores",
        ),
        Component(
            kind="attention",
            name="flashinfer",
            implementation="camshaft.plugins.attention.flashinfer:FlashInferAttention",
            settings=FlashInferSettings,
            summary="the FlashInfer library, where installed: `camshaft[flashinfer]`",
            needs=frozenset({Capability.CUDA}),
        ),
        Component(
            kind="attention",
            name="flash_attn",
            implementation="camshaft.plugins.attention.flash_attn:FlashAttnAttention",
            settings=FlashAttnSettings,
            summary="the flash-attn library, version 2 or 3, where installed",
            needs=frozenset({Capability.CUDA}),
        ),
    ]
