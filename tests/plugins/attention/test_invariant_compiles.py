"""Compiled for Hopper, tiles for single tokens and for many compute a row in the same way."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from camshaft.contracts.attention import AttentionSpec
from camshaft.plugins.attention.components import InvariantSettings
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.testing.attention import Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention import invariant
from camshaft.plugins.attention.invariant import InvariantAttention

pytestmark = pytest.mark.compiled

EVERYTHING: dict[str, Any] = {"window": 128, "soft_cap": 20.0, "sinks": True}
FLOAT = re.compile(
    r"\b((?:mul|add|sub|fma|max|min|div|ex2|lg2|cvt|selp|setp)\S*\.(?:f32|bf16x2|bf16)\S*"
    r"|wgmma\.mma_async\S*|shfl\.sync\.bfly\S*)"
)


def forward(heads: int, kv_heads: int, width: int, **options: Any) -> None:
    """Attend in a step of one decoding request and a prompt."""
    spec = AttentionSpec(
        heads, kv_heads, width, width, "bfloat16", 64, deterministic=True, **options
    )
    backend = InvariantAttention(InvariantSettings(), spec, PlainKV(KVNoneSettings()))
    scene = Scene(backend, spec, [(300, 1), (20, 30)])
    meta = scene._meta([(0, 300, 1), (1, 20, 30)])
    meta.plan = backend.plan(meta)
    q = torch.zeros(31, heads, width, dtype=torch.bfloat16)
    backend.forward(scene.layer, q, None, None, scene.fields, meta, torch.zeros_like(q))


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["plain", "window, cap and sinks"])
@pytest.mark.parametrize("shape", [(16, 8, 128), (9, 3, 64)])
def test_one_row_runs_the_same_float_operations_in_tiles_of_64_and_128_rows(
    hopper_kernels: list[tuple[str, Any]],
    shape: tuple[int, int, int],
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(invariant, "_is_hopper", lambda device: True)
    forward(*shape, **options)
    by_warps = {
        kernel.metadata.num_warps: FLOAT.findall(kernel.asm["ptx"])
        for name, kernel in hopper_kernels
        if name == "prefill_kernel"
    }
    assert sorted(by_warps) == [4, 8]
    operations = by_warps[4]
    assert operations == by_warps[8]
    assert any(name.startswith("wgmma") for name in operations)
    # with and without a mask, a product and a sum would be joined in different places
    assert not any(name.startswith("fma") for name in operations)


def test_it_compiles_and_fits_everywhere(shared_bytes: tuple[dict[str, int], int]) -> None:
    found, limit = shared_bytes
    forward(16, 4, 128, **EVERYTHING)
    assert found["prefill_kernel"] <= limit
