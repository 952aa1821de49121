"""The compiled backend for CPUs, over pages of every form that it reads."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from camshaft import native
from camshaft.component import Settings
from camshaft.contracts.attention import AttentionBackend, AttentionMeta, AttentionSpec, Rope
from camshaft.contracts.kv_quant import KVQuant
from camshaft.errors import PluginError
from camshaft.facts import DeviceFacts
from camshaft.native.arena import Arena
from camshaft.native.tape import record
from camshaft.ops import rope_qk_norm
from camshaft.plugins.attention.components import NativeSettings
from camshaft.plugins.attention.native import NativeAttention
from camshaft.plugins.attention.pages import ORDER, PlainPages
from camshaft.registry import Registry
from camshaft.testing.attention import CPU, AttentionContract, Scene, Sequences

pytestmark = pytest.mark.skipif(not native.expected(), reason="no compiled operations here")


class Native(AttentionContract):
    backend = NativeAttention

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return NativeAttention(NativeSettings(), spec, kv_quant)

    def test_values_may_be_narrower_than_keys(self) -> None:
        self.check(self.scene([(9, 1), (0, 5)], head_dim=48, value_dim=16))


class TestNative(Native):
    def test_a_decode_may_go_over_many_pieces_of_its_keys(self) -> None:
        self.check(self.scene([(1100, 1)], page_tokens=16))
        self.check(self.scene([(700, 1), (1100, 3)], window=300))

    def test_a_prompt_may_be_longer_than_a_tile_and_than_a_piece(self) -> None:
        self.check(self.scene([(0, 1), (150, 290)], heads=9, kv_heads=3, sinks=True))

    @pytest.mark.parametrize("size", [32, 48, 64, 80, 128, 192, 256])
    def test_heads_may_have_any_usual_size(self, size: int) -> None:
        self.check(self.scene([(70, 1), (0, 9)], head_dim=size, value_dim=size))

    def test_many_heads_may_share_one(self) -> None:
        self.check(self.scene([(70, 1), (0, 9)], heads=100, kv_heads=1))

    def test_chunks_change_no_bit(self) -> None:
        whole = self.scene([(0, 330)])
        expected = whole.run()[0]
        for before in (1, 100, 256, 329):
            rest = self.scene([(before, 330 - before)])
            rest.queries = [whole.queries[0][before:]]
            assert torch.equal(rest.run()[0], expected[before:])

    def test_neither_threads_nor_the_batch_change_a_bit(self) -> None:
        sequences: Sequences = [(1100, 1), (3, 1), (20, 200)]
        alone, among = [], []
        for threads in (1, 3):  # alone and with several threads, keys are dealt out in pieces
            native.open_team(threads, spins=100)
            among.append(self.scene(sequences).run())
            alone.append(self.scene(sequences)._run([(0, *sequences[0])])[0])
        native.close_team()
        assert all(torch.equal(one, other) for one, other in zip(*among, strict=True))
        assert torch.equal(alone[0], among[0][0])
        assert torch.equal(alone[1], among[0][0])

    def test_the_log_of_the_sum_is_that_of_all_scores(self) -> None:
        scene = self.scene([(9, 1), (0, 5)], sinks=True)
        meta = scene._meta([(0, 9, 1), (1, 0, 5)])
        q, lse = torch.cat(scene.queries), torch.empty(6, 12)[:, :6]
        scene.run()
        scene.backend.forward(
            scene.layer, q, None, None, scene.fields, meta, torch.empty_like(q), lse
        )
        keys = scene.stored(0)[0].double().repeat_interleave(3, dim=1)
        scores = torch.einsum("hd,shd->hs", q[0].double(), keys) * scene.layer.scale
        assert scene.layer.sinks is not None
        every = torch.cat((scores, scene.layer.sinks.double()[:, None]), dim=1)
        torch.testing.assert_close(
            lse[0].double(), every.logsumexp(1), atol=self.tolerance, rtol=self.tolerance
        )

    def test_a_recorded_step_serves_other_lengths(self) -> None:
        first = self.scene([(70, 1), (5, 1)])
        meta = first._meta([(0, 70, 1), (1, 5, 1)])
        meta.page_table = torch.zeros(2, 40, dtype=torch.int32)
        fields = {name: one.new_zeros(99, *one.shape[1:]) for name, one in first.fields.items()}
        out = torch.empty(2, 6, 16, dtype=first.keys[0].dtype)
        q = torch.empty_like(out)
        recorded = record(lambda: self._attend(first, q, fields, meta, out), Arena())
        for seed, sequences in enumerate(([(3, 1), (150, 1)], [(100, 1), (64, 1)])):
            scene = self.scene(sequences, seed)
            scene.run()
            mine = scene._meta([(index, *one) for index, one in enumerate(sequences)])
            meta.context.copy_(mine.context)
            meta.page_table[:, : mine.page_table.shape[1]] = mine.page_table
            q.copy_(torch.cat(scene.queries))
            for name, one in scene.fields.items():
                fields[name][: len(one)] = one
            recorded.replay()
            for got, wanted in zip(out.split(1), scene.expected(), strict=True):
                assert (got.double() - wanted).abs().max() < self.tolerance

    def _attend(
        self,
        scene: Scene,
        q: torch.Tensor,
        fields: dict[str, torch.Tensor],
        meta: AttentionMeta,
        out: torch.Tensor,
    ) -> tuple[()]:
        scene.backend.forward(scene.layer, q, None, None, fields, meta, out)
        return ()

    @pytest.mark.parametrize("with_norm", [False, True])
    @pytest.mark.parametrize("rotated", [0, 8, 32])
    def test_to_prepare_is_to_rotate_and_to_write(self, rotated: int, with_norm: bool) -> None:
        scene = self.scene([(5, 1), (2, 6)], head_dim=32, value_dim=48)
        meta = scene._meta([(0, 5, 1), (1, 2, 6)])
        layer = dataclasses.replace(scene.layer)
        dtype = scene.keys[0].dtype
        if rotated:
            angles = torch.rand(32, rotated // 2) * 6
            layer.rope = Rope(angles.cos(), angles.sin())
        if with_norm:
            layer.q_norm, layer.k_norm = torch.rand(32).to(dtype), torch.rand(32) + 1
        qkv = torch.randn(7, 500).to(dtype)[:, : 8 * 32 + 2 * 48]
        q, k, v = rope_qk_norm(qkv, meta.positions, layer)
        wanted = {name: one.clone() for name, one in scene.fields.items()}
        PlainPages(2, 4).write(wanted, PlainPages(2, 4).writes(meta), k, v)
        got = scene.backend.prepare(layer, qkv, scene.fields, meta)
        assert got is not None
        torch.testing.assert_close(got, q, atol=1e-6, rtol=0.01)
        for name, one in scene.fields.items():
            torch.testing.assert_close(one, wanted[name], atol=1e-6, rtol=0.01, equal_nan=True)


class TestNativeInBfloat16(TestNative):
    dtype = "bfloat16"
    tolerance = 0.03


class TestNativeInt8(Native):
    form = "int8"


class TestNativeFp8(Native):
    form = "fp8"


class TestNativeInt8InBfloat16(Native):
    form = "int8"
    dtype = "bfloat16"
    tolerance = 0.03


@pytest.mark.parametrize("form", ["none", "int8", "fp8"])
def test_nan_in_a_page_that_is_read_is_caught(form: str) -> None:
    class Poisoned(Native):
        pass

    Poisoned.form = form
    scene = Poisoned().scene([(9, 1)])
    for tensor in scene.fields.values():
        if tensor.is_floating_point():
            tensor[torch.tensor(scene.tables[0][:1])] = float("nan")
    assert scene.run()[0].isnan().all()


@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_codes_are_those_of_the_twin(form: str) -> None:
    kv_quant = Registry.discover().get("kv_quant", form).load()(Settings())
    spec = AttentionSpec(2, 2, 64, 32, "float32", 16)
    backend = NativeAttention(NativeSettings(), spec, kv_quant)
    scene = Scene(backend, spec, [(0, 16)], kv_quant=kv_quant)
    meta = scene._meta([(0, 0, 16)])
    qkv = torch.randn(16, 4 * 64 + 2 * 32) * 10 ** torch.linspace(-6, 3, 16)[:, None]
    qkv[3] = 0
    qkv[5, 140], qkv[6, 140] = float("inf"), float("nan")
    wanted = {name: torch.zeros_like(one) for name, one in scene.fields.items()}
    got = {name: torch.zeros_like(one) for name, one in scene.fields.items()}
    backend.prepare(scene.layer, qkv, got, meta)
    _, k, v = rope_qk_norm(qkv, meta.positions, scene.layer)
    kv_quant.write(wanted, meta.write_page, meta.write_offset, k, v, ORDER)
    read = [kv_quant.read(one, meta.write_page, torch.float32, ORDER) for one in (got, wanted)]
    for one, other in zip(*read, strict=True):
        assert torch.equal(one.isfinite(), other.isfinite())
        assert torch.equal(one.nan_to_num(0, 0, 0), other.nan_to_num(0, 0, 0))


def test_what_it_cannot_do_is_said_in_words() -> None:
    spec = AttentionSpec(4, 2, 8, 20, "float16", 16, window=3, causal=False)
    assert len(NativeAttention.supports(spec, CPU)) == 4
    card = DeviceFacts("cuda", "a card", 2**30, frozenset())
    assert NativeAttention.supports(AttentionSpec(4, 2, 16, 16, "bfloat16", 16), card) == [
        "it runs on CPUs, and a card is none"
    ]


def test_a_form_that_it_does_not_read_is_refused_with_the_cure() -> None:
    kv_quant = Registry.discover().get("kv_quant", "int4").load()(Settings())
    with pytest.raises(PluginError, match="take attention 'sdpa'"):
        NativeAttention(NativeSettings(), AttentionSpec(4, 2, 16, 16, "float32", 16), kv_quant)
