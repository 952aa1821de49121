"""The kernels compile for accelerators that are not here. The interpreter checks no types."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft.contracts.attention import AttentionSpec, Rope
from camshaft.plugins.attention.components import TritonSettings
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.testing.attention import Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention.device import OnDevice
from camshaft.plugins.attention.triton import TritonAttention

pytestmark = pytest.mark.compiled

SETTINGS = TritonSettings(merge_in_decode=False)  # the other form has tests of its own
KERNELS = {"decode_kernel", "merge_kernel", "prefill_kernel", "prepare_kernel", "write_kernel"}


@pytest.mark.parametrize("everything", [False, True], ids=["plain", "window, cap and sinks"])
def test_every_kernel_compiles_and_fits(
    shared_bytes: tuple[dict[str, int], int], everything: bool
) -> None:
    found, limit = shared_bytes
    options: dict[str, Any] = {"window": 128, "soft_cap": 20.0, "sinks": True} if everything else {}
    spec = AttentionSpec(16, 4, 128, 128, "bfloat16", 16, **options)
    backend = TritonAttention(SETTINGS, spec, PlainKV(KVNoneSettings()))
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
    backend = TritonAttention(SETTINGS, spec, PlainKV(KVNoneSettings()))
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


def test_kernels_that_start_early_compile_and_wait(
    shared_bytes: tuple[dict[str, int], int], request: pytest.FixtureRequest
) -> None:
    if "gfx942" in request.node.name:
        pytest.skip("AMD's devices have no such launches")
    found, limit = shared_bytes
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64)
    backend = TritonAttention(SETTINGS, spec, PlainKV(KVNoneSettings()))
    backend._device, backend.calls.early = OnDevice(132, early=True), True
    scene = Scene(backend, spec, [(300, 1), (260, 1)], prefixes=[((0, 1), 256)])
    meta = scene._meta([(0, 300, 1), (1, 260, 1)])
    meta.shared = scene.shared([0, 1])
    meta.plan = backend.plan(meta)
    found.clear()
    scene.layer.rope = Rope(torch.zeros(400, 64), torch.zeros(400, 64))
    qkv = torch.zeros(2, 32 * 128, dtype=torch.bfloat16)
    q = backend.prepare(scene.layer, qkv, scene.fields, meta)
    assert q is not None
    k = torch.zeros(2, 8, 128, dtype=q.dtype)
    backend.forward(scene.layer, q, k, k, scene.fields, meta, torch.zeros_like(q))
    early = {"prepare_kernel", "write_kernel", "cascade_kernel", "decode_kernel", "merge_kernel"}
    assert set(found) == early
    assert max(found.values()) <= limit


@pytest.mark.parametrize("everything", [False, True], ids=["plain", "window, cap and sinks"])
def test_the_decode_kernel_that_prepares_compiles_and_fits(
    shared_bytes: tuple[dict[str, int], int], request: pytest.FixtureRequest, everything: bool
) -> None:
    found, limit = shared_bytes
    options: dict[str, Any] = {"window": 128, "soft_cap": 20.0, "sinks": True} if everything else {}
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64, **options)
    backend = TritonAttention(SETTINGS, spec, PlainKV(KVNoneSettings()))
    backend._device = OnDevice(132, early="sm_90" in request.node.name)
    backend.calls.early = backend._device.early
    scene = Scene(backend, spec, [(300, 1), (260, 1)])
    meta = scene._meta([(0, 300, 1), (1, 260, 1)])
    meta.plan = backend.plan(meta)
    scene.layer.rope = Rope(torch.zeros(400, 64), torch.zeros(400, 64))
    scene.layer.q_norm = torch.ones(128) if everything else None
    found.clear()
    q = backend.prepare(
        scene.layer, torch.zeros(2, 32 * 128, dtype=torch.bfloat16), scene.fields, meta
    )
    assert q is not None
    out, lse = torch.zeros(2, 16, 128, dtype=q.dtype), torch.zeros(2, 16) if everything else None
    backend.forward(scene.layer, q, None, None, scene.fields, meta, out, lse)
    assert set(found) == {"newest_kernel", "merge_kernel"}
    assert max(found.values()) <= limit


def test_wide_tiles_fit_where_they_are_chosen(
    shared_bytes: tuple[dict[str, int], int], request: pytest.FixtureRequest
) -> None:
    if "gfx942" in request.node.name:
        pytest.skip("they are chosen on NVIDIA's devices from Hopper on")
    found, _ = shared_bytes
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64)
    backend = TritonAttention(SETTINGS, spec, PlainKV(KVNoneSettings()))
    backend._device = OnDevice(132, early=False, is_roomy=True)
    sequences = [(700, 1)] * 9
    scene = Scene(backend, spec, sequences)
    meta = scene._meta([(index, *one) for index, one in enumerate(sequences)])
    meta.plan = backend.plan(meta)
    (part,) = meta.plan
    assert (part.blocks.keys, part.prepares) == (128, False)
    q = torch.zeros(9, 16, 128, dtype=torch.bfloat16)
    backend.forward(scene.layer, q, None, None, scene.fields, meta, torch.zeros_like(q))
    assert found["decode_kernel"] * part.blocks.resident <= 227 << 10
