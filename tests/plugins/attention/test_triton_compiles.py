"""The kernels compile for accelerators that are not here. The interpreter checks no types."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from camshaft.contracts.attention import AttentionSpec, Rope
from camshaft.plugins.attention.components import TritonSettings
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.testing.attention import Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention.triton import TritonAttention

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1 is set"
)

KERNELS = {"decode_kernel", "merge_kernel", "prefill_kernel", "prepare_kernel", "write_kernel"}


@pytest.mark.parametrize("everything", [False, True], ids=["plain", "window, cap and sinks"])
def test_every_kernel_compiles_and_fits(
    shared_bytes: tuple[dict[str, int], int], everything: bool
) -> None:
    found, limit = shared_bytes
    options: dict[str, Any] = {"window": 128, "soft_cap": 20.0, "sinks": True} if everything else {}
    spec = AttentionSpec(16, 4, 128, 128, "bfloat16", 16, **options)
    backend = TritonAttention(TritonSettings(), spec, PlainKV(KVNoneSettings()))
    scene = Scene(backend, spec, [(300, 1), (20, 30)])
    meta = scene._meta([(0, 300, 1), (1, 20, 30)])
    meta.plan = backend.plan(meta)
    scene.layer.rope = Rope(torch.zeros(400, 64), torch.zeros(400, 64))
    scene.layer.q_norm = torch.ones(128) if everything else None
    q = torch.zeros(31, 16, 128, dtype=torch.bfloat16)
    backend.prepare(scene.layer, torch.zeros(31, 24 * 128, dtype=q.dtype), scene.fields, meta)
    lse = torch.zeros(31, 16) if everything else None
    backend.forward(scene.layer, q, None, None, scene.fields, meta, torch.zeros_like(q), lse)
    assert set(found) == KERNELS
    assert max(found.values()) <= limit


@pytest.mark.parametrize("everything", [False, True], ids=["plain", "cap and sinks"])
def test_the_kernels_for_shared_prefixes_compile_and_fit(
    shared_bytes: tuple[dict[str, int], int], everything: bool
) -> None:
    found, limit = shared_bytes
    options: dict[str, Any] = {"soft_cap": 20.0, "sinks": True} if everything else {}
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64, **options)
    backend = TritonAttention(TritonSettings(), spec, PlainKV(KVNoneSettings()))
    scene = Scene(backend, spec, [(300, 1), (260, 1)], prefixes=[((0, 1), 256)])
    meta = scene._meta([(0, 300, 1), (1, 260, 1)])
    meta.shared = scene.shared([0, 1])
    meta.plan = backend.plan(meta)
    found.clear()
    q = torch.zeros(2, 16, 128, dtype=torch.bfloat16)
    lse = torch.zeros(2, 16) if everything else None
    backend.forward(scene.layer, q, None, None, scene.fields, meta, torch.zeros_like(q), lse)
    assert set(found) == {"cascade_kernel", "decode_kernel", "merge_kernel"}
    assert max(found.values()) <= limit
