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


class TritonSettings(Settings):
    """Settings of `triton`."""

    splits: PositiveInt = Field(default=128, le=128)
    """Most pieces that the keys of a request are cut into while it decodes; 1 cuts nothing."""
    split_tokens: PositiveInt = Field(default=8, le=16)
    """Requests with up to so many query tokens, such as drafts, are cut as well."""
    fuse_prepare: bool = True
    """Norm, rotate and store in one kernel, in place of the chosen ops and a copy."""


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
            name="triton",
            implementation="camshaft.plugins.attention.triton:TritonAttention",
            settings=TritonSettings,
            summary="paged kernels for accelerators: split decode, tiled prefill",
            needs=frozenset({Capability.TRITON}),
        ),
    ]
