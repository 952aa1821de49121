from __future__ import annotations

import dataclasses
import os

import pytest
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.attention.components import CudnnSettings
from camshaft.testing.attention import AttentionContract, Scene, Sequences

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention import cudnn, dense_call
from camshaft.plugins.attention.cudnn import CudnnAttention, CudnnPlan
from camshaft.plugins.attention.triton import TritonAttention

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
on_cpu = pytest.mark.interpreted
on_gpu = pytest.mark.skipif(interpreted, reason="TRITON_INTERPRET=1 is set")
pytestmark = pytest.mark.usefixtures("loops_with_bounds_from_memory")

FACTS = DeviceFacts(
    "cuda",
    "test",
    2**30,
    frozenset({"bfloat16", "float16"}),
    frozenset({Capability.TRITON, Capability.CUDA}),
    architecture="sm_90",
)


def plain_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what cuDNN's call does, where there is none: causal from the top left."""
    group = q.shape[1] // k.shape[1]
    keys, values = (one.float().repeat_interleave(group, dim=1) for one in (k, v))
    scores = q.float() @ keys.transpose(2, 3) * scale
    if causal:
        later = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    out = torch.empty_like(q).copy_(scores.softmax(-1) @ values)
    return out, scores.logsumexp(-1)


def test_where_kernels_are_only_compiled_it_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_call, "compiles_only", lambda: True)
    q = torch.zeros(2, 64, 4, 32).transpose(1, 2)
    out, sums = dense_call.attend_dense(q, q, q, causal=True, scale=1.0)
    assert (out.shape, out.stride()) == (q.shape, q.stride())
    assert (sums.shape, sums.is_contiguous(), sums.dtype) == ((2, 4, 64), True, torch.float32)
    monkeypatch.undo()
    with pytest.raises(NotImplementedError):  # a CPU has no such operation
        dense_call.attend_dense(q, q, q, causal=True, scale=1.0)


class CudnnContract(AttentionContract):
    backend = CudnnAttention
    facts = FACTS
    dtype = "float16"
    tolerance = 5e-3
    least = 1024
    cascade = True

    @pytest.fixture(autouse=True)
    def cudnn_is_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)

    def spec(self, **changes: object) -> AttentionSpec:
        return super().spec(**{"head_dim": 64, "value_dim": 64, **changes})

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        # small blocks come with a smaller limit than recipes may set
        settings = CudnnSettings.model_construct(least_tokens=self.least, cascade=self.cascade)
        return CudnnAttention(settings, spec, kv_quant)

    def plan(self, scene: Scene) -> CudnnPlan:
        backend = scene.backend
        assert isinstance(backend, CudnnAttention)
        return backend.plan(scene._meta([(i, *one) for i, one in enumerate(scene.sequences)]))


@on_cpu
class TestInterpreted(CudnnContract):
    least = 8
    cascade = False  # another's work, and slow here

    @pytest.fixture(autouse=True)
    def small_blocks_without_cudnn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cudnn, "BLOCK", 8)
        monkeypatch.setattr(dense_call, "attend_dense", plain_attention)

    def check_log_sums(self, scene: Scene) -> None:
        """Compare the logs of the sums with those of the tile kernel."""
        meta = scene._meta([(i, *one) for i, one in enumerate(scene.sequences)])
        q = torch.cat(scene.queries)
        scene.run()  # leaves the step's keys in their pages
        sums = []
        for backend in (scene.backend, scene.backend.tiled):  # type: ignore[attr-defined]
            meta.plan = backend.plan(meta)
            lse = torch.full((len(q), scene.spec.heads), float("nan"))
            fields = scene.fields
            backend.forward(scene.layer, q, None, None, fields, meta, torch.empty_like(q), lse)
            sums.append(lse)
        torch.testing.assert_close(*sums, atol=2e-4, rtol=0)

    @pytest.mark.parametrize(
        "sequences",
        [
            [(0, 16)],
            [(0, 27)],
            [(0, 22)],
            [(24, 16)],
            [(29, 35)],
            [(5, 1), (0, 16), (0, 16), (3, 2), (56, 19)],
            [(0, 16), (0, 16), (0, 16)],
        ],
        ids=["block", "rest", "padded", "context", "shifted", "mixed", "three alike"],
    )
    def test_dense_calls_give_the_same_as_dense_attention(self, sequences: Sequences) -> None:
        scene = self.scene(sequences)
        assert self.plan(scene).calls
        self.check(scene)
        self.check_log_sums(scene)

    def test_more_pieces_than_one_merge_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dense_call, "MOST_PARTS", 2)
        scene = self.scene([(56, 16)], heads=4, kv_heads=2)
        self.check(scene)
        self.check_log_sums(scene)

    @pytest.mark.parametrize("page_tokens", [1, 16, 64])
    def test_pages_of_every_size_are_gathered(self, page_tokens: int) -> None:
        self.check(self.scene([(37, 20)], page_tokens=page_tokens))

    def test_queries_may_be_a_view_of_one_projection(self) -> None:
        scene = self.scene([(0, 16)])
        meta = scene._meta([(0, 0, 16)])
        qkv = torch.cat([scene.queries[0], scene.keys[0], scene.values[0]], dim=1)
        q, k, v = qkv.split([6, 2, 2], dim=1)
        out = torch.empty_like(scene.queries[0])
        meta.plan = scene.backend.plan(meta)
        scene.backend.forward(scene.layer, q, k, v, scene.fields, meta, out)
        torch.testing.assert_close(out.double(), scene.expected()[0], atol=5e-3, rtol=0)

    @pytest.mark.parametrize("form", ["int8", "int4"])
    def test_quantised_keys_are_gathered_as_numbers_even_of_fresh_prompts(self, form: str) -> None:
        self.form = form
        scene = self.scene([(0, 16), (5, 1), (24, 16)])
        assert len(self.plan(scene).calls) == 2
        self.check(scene)
        meta = scene._meta([(0, 0, 16)])
        meta.plan = scene.backend.plan(meta)
        qkv = torch.zeros(16, 10 * 64, dtype=torch.float16)
        assert scene.backend.prepare(scene.layer, qkv, scene.fields, meta) is not None
        assert meta.plan.fresh is None

    def test_fresh_prompts_attend_to_a_copy_of_their_keys(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        scene = self.scene([(0, 16), (5, 1), (0, 27), (24, 16)])
        meta = scene._meta([(i, *one) for i, one in enumerate(scene.sequences)])
        gathered = []

        def watched(*args: object) -> object:
            gathered.append(args[2:])
            return gather(*args)  # type: ignore[arg-type]

        gather = dense_call.gather
        monkeypatch.setattr(dense_call, "gather", watched)
        scene.run()  # leaves older keys in their pages
        gathered.clear()
        for name in "kv":
            scene.fields[name][meta.write_page, :, meta.write_offset] = float("nan")
        meta.plan = scene.backend.plan(meta)
        new = [
            torch.cat(
                [one[before:] for one, (before, _) in zip(side, scene.sequences, strict=True)]
            )
            for side in (scene.keys, scene.values)
        ]
        qkv = torch.cat([torch.cat(scene.queries), *new], dim=1).flatten(1)
        q = scene.backend.prepare(scene.layer, qkv, scene.fields, meta)
        assert q is not None
        out = torch.full_like(q, float("nan"))
        scene.backend.forward(scene.layer, q, None, None, scene.fields, meta, out)
        assert [first for first, *_ in gathered] == [24, 0, 16]  # only who has a context
        counts = [count for _, count in scene.sequences]
        for got, wanted in zip(out.split(counts), scene.expected(), strict=True):
            assert (got.double() - wanted).abs().max().item() < self.tolerance

    def test_a_neighbours_nan_stays_its_own(self) -> None:
        scene = self.scene([(0, 16), (0, 22), (0, 16)])
        scene.keys[1].fill_(float("nan"))
        scene.values[1].fill_(float("nan"))
        first, broken, last = scene.run()
        assert not torch.isnan(first).any()
        assert not torch.isnan(last).any()
        assert torch.isnan(broken).all()

    def test_a_captured_plan_has_no_dense_calls(self) -> None:
        scene = self.scene([(0, 16)])
        backend = scene.backend
        assert isinstance(backend, CudnnAttention)
        assert backend.plan(scene._meta([(0, 0, 16)]), capture=True).calls == []

    def test_warming_up_meets_every_likely_shape(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shapes = []

        def watched(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, scale: float
        ) -> tuple[torch.Tensor, torch.Tensor]:
            shapes.append((len(q), q.shape[2], k.shape[2], causal))
            return plain_attention(q, k, v, causal=causal, scale=scale)

        monkeypatch.setattr(dense_call, "attend_dense", watched)
        scene = self.scene([(0, 1)], max_context=56)
        scene.backend.warm_up("cpu", 24)
        wanted = [(1, 8), (2, 8), (1, 16), (1, 24)]
        alone = [(batch, rows, rows, True) for batch, rows in wanted]
        behind = [
            (1, rows, keys, keys == rows and index == 0)
            for rows in (16, 24)
            for index, keys in enumerate((rows, 32, 16, 8))
        ]
        assert shapes == alone + behind


@on_gpu
@pytest.mark.gpu
class TestBfloat16(CudnnContract):
    device = "cuda"
    dtype = "bfloat16"
    tolerance = 0.03

    @pytest.mark.parametrize("sizes", [(16, 8, 128), (32, 8, 128), (9, 3, 64)])
    @pytest.mark.parametrize(
        "sequences",
        [
            [(0, 2048), (0, 2048)],
            [(0, 3000), (700, 1), (0, 5192)],
            [(3072, 2048)],
            [(1500, 2600), (20, 5)],
            [(17 * 1024, 1024)],
        ],
        ids=["two alike", "rest and padding", "context", "shifted", "long context"],
    )
    def test_dense_calls_give_the_same_as_dense_attention(
        self, sequences: Sequences, sizes: tuple[int, int, int]
    ) -> None:
        heads, kv_heads, dim = sizes
        scene = self.scene(
            sequences, page_tokens=64, heads=heads, kv_heads=kv_heads, head_dim=dim, value_dim=dim
        )
        assert self.plan(scene).calls
        self.check(scene)


@on_gpu
@pytest.mark.gpu
class TestFloat16(TestBfloat16):
    dtype = "float16"
    tolerance = 6e-3


def test_what_it_cannot_do_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    spec = AttentionSpec(4, 2, 32, 32, "float32", 16, window=3, sinks=True, soft_cap=1.0)
    assert CudnnAttention.supports(spec, FACTS) == [
        "this torch comes without cuDNN",
        "cuDNN attends in bfloat16 and float16, not in float32",
        "heads have 32 elements, not 64 or 128",
        "it has no sliding window",
        "it has no attention sinks",
        "it has no soft cap",
    ]


@pytest.mark.parametrize("changes", [{"architecture": "sm_75"}, {"kind": "rocm"}])
def test_cards_without_its_kernels_are_refused(changes: dict[str, str]) -> None:
    spec = AttentionSpec(4, 2, 64, 64, "float16", 16)
    assert CudnnAttention.supports(spec, dataclasses.replace(FACTS, **changes)) == [  # type: ignore[arg-type]
        "cuDNN's attention needs an NVIDIA card from sm_80 on, not test"
    ]


def test_its_pages_are_those_of_triton() -> None:
    from camshaft.plugins.quant.components import KVNoneSettings
    from camshaft.plugins.quant.kv_none import PlainKV

    spec = AttentionSpec(4, 2, 64, 64, "float16", 16)
    kv_quant = PlainKV(KVNoneSettings())
    mine = CudnnAttention(CudnnSettings(), spec, kv_quant).kv_layout()
    assert mine == TritonAttention.kv_layout(CudnnAttention(CudnnSettings(), spec, kv_quant).tiled)
