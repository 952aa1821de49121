"""The kernels compile over pages of every form, for accelerators that are not here."""

from __future__ import annotations

import pytest
import torch

from camshaft.component import Settings
from camshaft.contracts.attention import AttentionSpec, Rope
from camshaft.contracts.kv_quant import KVQuant
from camshaft.plugins.attention.components import TritonSettings
from camshaft.registry import Registry
from camshaft.testing.attention import Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention.dense_call import gather
from camshaft.plugins.attention.device import OnDevice
from camshaft.plugins.attention.triton import TritonAttention

pytestmark = pytest.mark.compiled


def backend_of(form: str, spec: AttentionSpec) -> TritonAttention:
    kv_quant: KVQuant = Registry.discover().get("kv_quant", form).load()(Settings())
    return TritonAttention(TritonSettings(merge_in_decode=False), spec, kv_quant)


@pytest.mark.parametrize("form", ["fp8", "int8", "int4"])
def test_kernels_of_prompts_compile_and_fit(
    shared_bytes: tuple[dict[str, int], int], form: str
) -> None:
    found, limit = shared_bytes
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64)
    backend = backend_of(form, spec)
    scene = Scene(backend, spec, [(20, 30)])
    meta = scene._meta([(0, 20, 30)])
    meta.plan = backend.plan(meta)
    found.clear()
    q, k = (torch.zeros(30, heads, 128, dtype=torch.bfloat16) for heads in (16, 8))
    backend.prepare(scene.layer, torch.zeros(30, 32 * 128, dtype=q.dtype), scene.fields, meta)
    backend.forward(scene.layer, q, k, k, scene.fields, meta, torch.zeros_like(q))
    gather(scene.fields, meta.page_table, 0, 64, 64, q)
    assert set(found) == {"prepare_kernel", "write_kernel", "prefill_kernel", "gather_kernel"}
    assert max(found.values()) <= limit


@pytest.mark.parametrize("form", ["fp8", "int8", "int4"])
def test_kernels_of_decodes_compile_and_fit(
    shared_bytes: tuple[dict[str, int], int], form: str
) -> None:
    found, limit = shared_bytes
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64)
    backend = backend_of(form, spec)
    scene = Scene(backend, spec, [(300, 1), (260, 1)], prefixes=[((0, 1), 256)])
    meta = scene._meta([(0, 300, 1), (1, 260, 1)])
    meta.shared = scene.shared([0, 1])
    meta.plan = backend.plan(meta)
    found.clear()
    q = torch.zeros(2, 16, 128, dtype=torch.bfloat16)
    backend.forward(scene.layer, q, None, None, scene.fields, meta, torch.zeros_like(q))
    assert set(found) == {"cascade_kernel", "decode_kernel", "merge_kernel"}
    assert max(found.values()) <= limit


@pytest.mark.parametrize("form", ["fp8", "int8", "int4"])
def test_the_decode_kernel_that_prepares_compiles_and_fits(
    shared_bytes: tuple[dict[str, int], int], request: pytest.FixtureRequest, form: str
) -> None:
    found, limit = shared_bytes
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64)
    backend = backend_of(form, spec)
    backend._device = OnDevice(132, early="sm_90" in request.node.name)
    backend.calls.early = backend._device.early
    scene = Scene(backend, spec, [(300, 1), (260, 1)])
    meta = scene._meta([(0, 300, 1), (1, 260, 1)])
    meta.plan = backend.plan(meta)
    scene.layer.rope = Rope(torch.zeros(400, 64), torch.zeros(400, 64))
    found.clear()
    q = backend.prepare(
        scene.layer, torch.zeros(2, 32 * 128, dtype=torch.bfloat16), scene.fields, meta
    )
    assert q is not None
    backend.forward(scene.layer, q, None, None, scene.fields, meta, torch.zeros_like(q))
    assert set(found) == {"newest_kernel", "merge_kernel"}
    assert max(found.values()) <= limit
