"""The kernels around cuDNN compile for accelerators that are not here."""

from __future__ import annotations

import pytest
import torch

from camshaft.contracts.attention import AttentionSpec
from camshaft.plugins.attention.components import CudnnSettings
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.testing.attention import Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention import dense_call
from camshaft.plugins.attention.cudnn import CudnnAttention

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize("parts", [2, 8], ids=["merges in turn", "one merge"])
def test_kernels_around_cudnn_compile_and_fit(
    shared_bytes: tuple[dict[str, int], int], monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    found, limit = shared_bytes
    monkeypatch.setattr(dense_call, "MOST_PARTS", parts)
    monkeypatch.setattr(
        dense_call, "attend_dense", lambda q, k, v, **_: (torch.empty_like(q), q[..., 0].float())
    )
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64, max_context=8192)
    backend = CudnnAttention(CudnnSettings(), spec, PlainKV(KVNoneSettings()))
    backend.warm_up("cpu", 2048)
    scene = Scene(backend, spec, [(6144, 2100)])
    meta = scene._meta([(0, 6144, 2100)])
    meta.plan = backend.plan(meta)
    q = torch.zeros(2100, 16, 128, dtype=torch.bfloat16)
    backend.forward(
        scene.layer, q, None, None, scene.fields, meta, torch.empty_like(q), torch.zeros(2100, 16)
    )
    assert {"gather_kernel", "merge_parts_kernel", "prefill_kernel"} <= set(found)
    assert max(found.values()) <= limit
