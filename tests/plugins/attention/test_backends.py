from __future__ import annotations

import torch

from camshaft.contracts.attention import AttentionBackend, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.plugins.attention.components import ReferenceSettings, SdpaSettings
from camshaft.plugins.attention.reference import ReferenceAttention
from camshaft.plugins.attention.sdpa import SdpaAttention
from camshaft.testing.attention import CPU, AttentionContract


class TestReference(AttentionContract):
    backend = ReferenceAttention

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return ReferenceAttention(ReferenceSettings(), spec, kv_quant)

    def test_it_skips_nothing(self) -> None:
        spec = self.spec(window=3, sinks=True, soft_cap=1.0, value_dim=8, deterministic=True)
        assert ReferenceAttention.supports(spec, CPU) == []

    def test_the_log_of_the_sum_merges_two_halves(self) -> None:
        # attention over all keys = both halves' results, weighted by their sums (cascade)
        from camshaft.plugins.attention.reference import attend_one

        scene = self.scene([(9, 1)])
        q, k, v = (
            scene.queries[0][0],
            scene.keys[0].transpose(0, 1),
            scene.values[0].transpose(0, 1),
        )
        whole, total = attend_one(q, k, v, scene.layer)
        left, left_sum = attend_one(q, k[:, :4], v[:, :4], scene.layer)
        right, right_sum = attend_one(q, k[:, 4:], v[:, 4:], scene.layer)
        weights = torch.stack([left_sum, right_sum]).softmax(0)[..., None]
        torch.testing.assert_close(weights[0] * left + weights[1] * right, whole)
        torch.testing.assert_close(torch.logaddexp(left_sum, right_sum), total)


class TestSdpa(AttentionContract):
    backend = SdpaAttention

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return SdpaAttention(SdpaSettings(), spec, kv_quant)


class TestSdpaInBfloat16(TestSdpa):
    dtype = "bfloat16"
    tolerance = 0.03


def test_what_sdpa_cannot_do_is_said_in_words() -> None:
    spec = AttentionSpec(4, 2, 8, 4, "float32", 16, sinks=True, soft_cap=1.0, deterministic=True)
    assert len(SdpaAttention.supports(spec, CPU)) == 4
