from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionMeta, AttentionSpec, Rope
from camshaft.contracts.kv_quant import KVQuant
from camshaft.facts import Capability, DeviceFacts
from camshaft.ops import rope_qk_norm
from camshaft.plugins.attention.components import TritonSettings
from camshaft.testing.attention import AttentionContract, Scene, Sequences

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention.parts import Decode, Prefill
from camshaft.plugins.attention.triton import TritonAttention

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
on_cpu = pytest.mark.interpreted
# compiled and interpreted kernels cannot live in one process
on_gpu = pytest.mark.skipif(interpreted, reason="TRITON_INTERPRET=1 is set")
pytestmark = pytest.mark.usefixtures("loops_with_bounds_from_memory")

DTYPES = frozenset({"float32", "bfloat16", "float16"})
FACTS = DeviceFacts("cuda", "test", 2**30, DTYPES, frozenset({Capability.TRITON}))


class TritonContract(AttentionContract):
    backend = TritonAttention
    facts = FACTS

    def make(
        self, spec: AttentionSpec, kv_quant: KVQuant, settings: TritonSettings | None = None
    ) -> AttentionBackend:
        return TritonAttention(settings or TritonSettings(), spec, kv_quant)


def with_settings(scene: Scene, **changes: object) -> Scene:
    """Replace the backend of a scene that has not run yet."""
    settings = TritonSettings.model_validate(changes)
    assert isinstance(scene.backend, TritonAttention)
    scene.backend = TritonAttention(settings, scene.spec, scene.backend.kv_quant)
    return scene


def lse_of(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the backend says of the sums of requests in step order, and the truth."""
    parts = [(index, *one) for index, one in enumerate(scene.sequences)]
    meta = scene._meta(parts)
    q = torch.cat(scene.queries)
    lse = q.new_full((len(q), scene.spec.heads), float("nan"), dtype=torch.float32)
    k, v = (
        torch.cat([one[before:] for one, (before, _) in zip(side, scene.sequences, strict=True)])
        for side in (scene.keys, scene.values)
    )
    meta.plan = scene.backend.plan(meta)
    scene.backend.forward(scene.layer, q, k, v, scene.fields, meta, torch.empty_like(q), lse)
    repeat = scene.spec.heads // scene.spec.kv_heads
    wanted = []
    for query, keys, (before, count) in zip(
        scene.queries, scene.keys, scene.sequences, strict=True
    ):
        scores = torch.einsum(
            "nhd,shd->nhs", query.double(), keys.double().repeat_interleave(repeat, dim=1)
        )
        place = torch.arange(before + count, device=q.device)
        query_at = torch.arange(before, before + count, device=q.device)[:, None, None]
        scores = (scores * scene.layer.scale).masked_fill(place > query_at, float("-inf"))
        if scene.layer.sinks is not None:
            sinks = scene.layer.sinks.to(scores)[None, :, None].expand(count, -1, 1)
            scores = torch.cat((scores, sinks), dim=-1)
        wanted.append(scores.logsumexp(-1))
    return lse, torch.cat(wanted)


def check_prepare(scene: Scene, rotated: int, normed: bool, tolerance: float) -> None:
    """Compare with the plain operations and the plain write."""
    sequences = [(index, *one) for index, one in enumerate(scene.sequences)]
    meta, layer = scene._meta(sequences), scene.layer
    with_parts(scene, rotated, normed)
    k, v = (
        torch.cat([one[before:] for one, (before, _) in zip(side, scene.sequences, strict=True)])
        for side in (scene.keys, scene.values)
    )
    qkv = torch.cat([torch.cat(scene.queries), k, v], dim=1).flatten(1)
    wanted = rope_qk_norm(qkv, meta.positions, layer)
    q = scene.backend.prepare(layer, qkv, scene.fields, meta)
    assert q is not None
    written = [scene.fields[name][meta.write_page, :, meta.write_offset] for name in ("k", "v")]
    for got, one in zip((q, *written), wanted, strict=True):
        torch.testing.assert_close(got, one, atol=tolerance, rtol=tolerance)


def with_parts(scene: Scene, rotated: int, normed: bool) -> None:
    """Give the layer of a scene rotary positions and norms."""
    if rotated:
        angles = torch.arange(4000)[:, None] * 10000 ** -(torch.arange(rotated // 2) * 2 / rotated)
        scene.layer.rope = Rope(angles.cos().to(scene.device), angles.sin().to(scene.device))
    if normed:
        weights = torch.rand(2, scene.spec.head_dim, generator=torch.Generator().manual_seed(3))
        scene.layer.q_norm, scene.layer.k_norm = (weights + 0.5).to(scene.queries[0])


def check_prepared(scene: Scene, tolerance: float, splits: int) -> None:
    """Compare the decode kernel that prepares with prepare, decode and merge in turn."""
    meta = scene._meta([(index, *one) for index, one in enumerate(scene.sequences)])
    new = [torch.stack([one[-1] for one in side]) for side in (scene.keys, scene.values)]
    qkv = torch.cat([torch.cat(scene.queries), *new], dim=1).flatten(1)
    clean = {name: pages.clone() for name, pages in scene.fields.items()}
    results = []
    for prepares in (False, True):
        for name, pages in scene.fields.items():
            pages.copy_(clean[name])
        meta.plan = with_settings(scene, splits=splits).backend.plan(meta)
        (part,) = meta.plan
        assert part.prepares
        part.prepares = prepares
        q = scene.backend.prepare(scene.layer, qkv, scene.fields, meta)
        assert q is not None
        assert (part.projected is qkv) == prepares
        out = torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
        lse = torch.full(q.shape[:2], float("nan"), device=q.device)
        scene.backend.forward(scene.layer, q, None, None, scene.fields, meta, out, lse)
        written = [scene.fields[name][meta.write_page, :, meta.write_offset] for name in ("k", "v")]
        results.append([out, lse, *written])
    for got, wanted in zip(*reversed(results), strict=True):
        torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


IN_DECODE = pytest.mark.parametrize(
    ("rotated", "changes"),
    [
        (16, {}),
        (6, {"window": 60}),
        (0, {"sinks": True, "soft_cap": 5.0}),
        (16, {"heads": 9, "kv_heads": 3}),
    ],
    ids=["plain", "window", "sinks and cap", "three heads"],
)


PREPARED = pytest.mark.parametrize(
    ("rotated", "normed"), [(16, False), (16, True), (6, True), (0, False), (0, True)]
)


@on_cpu
class TestInterpreted(TritonContract):
    @PREPARED
    def test_prepare_equals_the_plain_operations(self, rotated: int, normed: bool) -> None:
        scene = self.scene([(9, 1), (0, 1), (3, 4)], heads=9, kv_heads=3)
        check_prepare(scene, rotated, normed, 1e-5)

    @IN_DECODE
    @pytest.mark.parametrize("splits", [1, 128])
    def test_the_decode_kernel_can_prepare(
        self, rotated: int, changes: dict[str, Any], splits: int
    ) -> None:
        scene = self.scene([(130, 1), (0, 1)], **changes)
        with_parts(scene, rotated, normed=rotated == 16)
        check_prepared(scene, 1e-5, splits)

    def test_only_short_steps_of_single_tokens_leave_it_to_the_decode_kernel(self) -> None:
        def prepares(*sequences: tuple[int, int]) -> list[bool]:
            scene = self.scene(list(sequences))
            meta = scene._meta([(index, *one) for index, one in enumerate(sequences)])
            plan = scene.backend.plan(meta)
            return [isinstance(part, Decode) and part.prepares for part in plan]

        assert prepares((9, 1), (70, 1)) == [True]
        assert prepares(*[(9, 1)] * 13) == [False]  # the interpreter has room for 24 programs
        assert prepares((9, 1), (70, 2)) == [False, False]
        assert prepares((9, 1), (0, 40)) == [False, False]
        scene = with_settings(self.scene([(9, 1)]), prepare_in_decode=False)
        assert not scene.backend.plan(scene._meta([(0, 9, 1)]))[0].prepares

    def test_prepare_can_be_switched_off(self) -> None:
        scene = with_settings(self.scene([(0, 2)]), fuse_prepare=False)
        meta = scene._meta([(0, 0, 2)])
        qkv = torch.zeros(2, 10 * 16)
        assert scene.backend.prepare(scene.layer, qkv, scene.fields, meta) is None

    @pytest.mark.parametrize("page_tokens", [1, 16, 64])
    def test_pages_of_every_size_are_read(self, page_tokens: int) -> None:
        self.check(self.scene([(70, 1), (66, 3), (3, 20)], page_tokens=page_tokens))

    def test_long_requests_are_cut_into_splits(self) -> None:
        scene = self.scene([(200, 1), (0, 1), (70, 1)], sinks=True)
        plan = scene.backend.plan(scene._meta([(0, 200, 1)]))
        assert plan[0].splits > 1
        self.check(scene)

    def test_a_shared_prefix_is_read_by_the_cascade_alone(self) -> None:
        """Whole tiles of its keys, that is, and only if the recipe says so."""
        sequences = [(101, 1), (110, 1), (5, 1)]
        scene = self.shared_scene(sequences, [((0, 1), 100)])
        meta = scene._meta([(index, *one) for index, one in enumerate(sequences)])
        meta.shared = scene.shared(range(3))
        part = scene.backend.plan(meta)[0]
        assert part.cascade.requests.view(-1, 4)[:, 0].tolist() == [96, 96, 0]
        plain = with_settings(scene, cascade=False)
        assert plain.backend.sharing_pays_from == 0
        assert plain.backend.plan(meta)[0].cascade is None

    def test_a_prefix_of_more_requests_than_a_tile_has(self) -> None:
        scene = self.shared_scene([(33, 1)] * 18, [(range(18), 32)], heads=4, kv_heads=2)
        assert isinstance(scene.backend, TritonAttention)
        assert scene.backend.cascade_blocks.rows // 2 < 18
        self.check(scene)

    def test_one_split_gives_the_same(self) -> None:
        scene = self.scene([(200, 1), (70, 1)], sinks=True)
        self.check(with_settings(scene, splits=1))

    def test_a_windows_splits_start_where_the_window_does(self) -> None:
        self.check(self.scene([(200, 1), (10, 1), (150, 3)], window=100))

    @pytest.mark.parametrize("split_tokens", [1, 4])
    def test_drafts_run_either_kernel(self, split_tokens: int) -> None:
        scene = with_settings(self.scene([(90, 3), (7, 2), (0, 4)]), split_tokens=split_tokens)
        plan = scene.backend.plan(scene._meta([(0, 90, 3), (1, 7, 2), (2, 0, 4)]))
        assert [type(part) for part in plan] == [Prefill if split_tokens == 1 else Decode]
        self.check(scene)

    @pytest.mark.parametrize(
        "sequences",
        [[(130, 1), (5, 1)], [(30, 12), (0, 9)], [(3, 2), (90, 4)]],
        ids=["decode", "prefill", "drafts"],
    )
    @pytest.mark.parametrize("sinks", [False, True])
    def test_the_log_of_the_sum_is_returned(self, sequences: Sequences, sinks: bool) -> None:
        got, wanted = lse_of(self.scene(sequences, sinks=sinks))
        torch.testing.assert_close(got.double(), wanted, atol=2e-5, rtol=0)

    def test_keys_and_values_may_be_views_of_one_projection(self) -> None:
        scene = self.scene([(0, 5)])
        meta = scene._meta([(0, 0, 5)])
        qkv = torch.cat([scene.queries[0], scene.keys[0], scene.values[0]], dim=1)
        q, k, v = qkv.split([6, 2, 2], dim=1)
        out = torch.empty(5, 6, 16)
        meta.plan = scene.backend.plan(meta)
        scene.backend.forward(scene.layer, q, k, v, scene.fields, meta, out)
        torch.testing.assert_close(out.double(), scene.expected()[0], atol=2e-5, rtol=0)

    def test_a_captured_plan_serves_longer_requests(self) -> None:
        scene = self.scene([(120, 1)])
        meta = scene._meta([(0, 120, 1)])
        short = dataclasses.replace(
            meta, host_context=np.zeros(1, np.int32), context=torch.zeros_like(meta.context)
        )
        plan = scene.backend.plan(short, capture=True)
        assert plan[0].splits == 2
        self.check_with(scene, meta, short, plan)

    def check_with(
        self, scene: Scene, meta: AttentionMeta, short: AttentionMeta, plan: list[Decode]
    ) -> None:
        short.context.copy_(meta.context)  # what a replay finds in the buffers
        meta.plan = plan
        out = torch.empty_like(scene.queries[0])
        k, v = scene.keys[0][120:], scene.values[0][120:]
        scene.backend.forward(scene.layer, scene.queries[0], k, v, scene.fields, meta, out)
        torch.testing.assert_close(out.double(), scene.expected()[0], atol=2e-5, rtol=0)


@on_cpu
class TestInterpretedInFloat16(TritonContract):
    dtype = "float16"
    tolerance = 5e-3


class OnDevice(TritonContract):
    device = "cuda"

    @pytest.mark.parametrize(
        ("page_tokens", "head_dim"),
        [(1, 128), (16, 64), (16, 128), (32, 16), (64, 128), (64, 32), (128, 256)],
    )
    def test_pages_and_heads_of_every_size(self, page_tokens: int, head_dim: int) -> None:
        self.check(
            self.scene(
                [(700, 1), (0, 1), (129, 1), (130, 200), (0, 65), (64, 2)],
                page_tokens=page_tokens,
                head_dim=head_dim,
                value_dim=head_dim,
                heads=8,
            )
        )

    @pytest.mark.parametrize("heads", [(32, 8), (16, 8), (9, 3), (4, 4), (16, 1)])
    def test_long_contexts(self, heads: tuple[int, int]) -> None:
        sizes = {"heads": heads[0], "kv_heads": heads[1], "head_dim": 64, "value_dim": 64}
        sequences = [(2999, 1), (1, 1), (2500, 300), (0, 1000), (2047, 3)]
        self.check(self.scene(sequences, page_tokens=16, **sizes))

    @PREPARED
    def test_prepare_equals_the_plain_operations(self, rotated: int, normed: bool) -> None:
        scene = self.scene([(900, 1), (0, 1), (300, 40)], heads=12, kv_heads=4)
        check_prepare(scene, rotated, normed, max(1e-4, self.tolerance))

    @IN_DECODE
    @pytest.mark.parametrize("splits", [1, 128])
    def test_the_decode_kernel_can_prepare(
        self, rotated: int, changes: dict[str, Any], splits: int
    ) -> None:
        sequences = [(1300, 1), (0, 1), (64, 1), (63, 1)]
        scene = self.scene(sequences, head_dim=128, value_dim=128, page_tokens=16, **changes)
        with_parts(scene, rotated, normed=rotated == 16)
        check_prepared(scene, max(1e-4, self.tolerance), splits)

    def test_many_requests(self) -> None:
        sequences = [(index * 37 % 900, 1) for index in range(64)]
        self.check(self.scene(sequences, page_tokens=16, heads=8, head_dim=128, value_dim=128))

    @pytest.mark.parametrize("heads", [(16, 8), (32, 8), (9, 3), (16, 1)])
    @pytest.mark.parametrize("page_tokens", [16, 64])
    def test_many_requests_on_few_prefixes(self, heads: tuple[int, int], page_tokens: int) -> None:
        sequences = [(1100 + index * 37 % 400, 1) for index in range(150)] + [(40, 1), (0, 70)]
        prefixes = [
            (range(0, 100, 2), 1088),
            (range(1, 100, 2), 320),
            (range(100, 104), 960),
            ([150, *range(104, 130)], 0),
        ]
        self.check(
            self.shared_scene(
                sequences,
                prefixes,
                page_tokens=page_tokens,
                heads=heads[0],
                kv_heads=heads[1],
                head_dim=128,
                value_dim=128,
            )
        )

    @pytest.mark.parametrize("sequences", [[(2000, 1), (50, 1)], [(900, 200)], [(800, 4), (3, 2)]])
    def test_everything_at_once(self, sequences: Sequences) -> None:
        self.check(
            self.scene(
                sequences,
                page_tokens=16,
                window=700,
                sinks=True,
                soft_cap=5.0,
                heads=16,
                kv_heads=2,
            )
        )

    @pytest.mark.parametrize("sequences", [[(1300, 1), (5, 1)], [(300, 120)], [(3, 2), (900, 4)]])
    def test_the_log_of_the_sum_is_returned(self, sequences: Sequences) -> None:
        got, wanted = lse_of(self.scene(sequences, sinks=True))
        torch.testing.assert_close(got.double(), wanted, atol=self.tolerance, rtol=0)

    @pytest.mark.parametrize("tokens", [1, 4])
    def test_a_replay_reads_the_lengths_of_its_own_step(self, tokens: int) -> None:
        contexts = [1500, 3, 700, 64]
        sequences = [(before, tokens) for before in contexts]
        scene = self.scene(sequences, page_tokens=16, head_dim=64, value_dim=64)
        meta = scene._meta([(index, *one) for index, one in enumerate(sequences)])
        truth = (meta.context.clone(), meta.write_page.clone(), meta.write_offset.clone())
        meta.context.zero_()  # the placeholder of a capture: nothing stored, null pages written
        meta.write_page.zero_()
        meta.host_context = np.zeros_like(meta.host_context)
        q = torch.cat(scene.queries)
        k = torch.cat([one[-tokens:] for one in scene.keys])
        v = torch.cat([one[-tokens:] for one in scene.values])
        out = torch.full_like(q, float("nan"))

        def step() -> None:
            scene.backend.forward(scene.layer, q, k, v, scene.fields, meta, out)

        graph = recorded(scene.backend, meta, step)
        meta.context.copy_(truth[0])
        meta.write_page.copy_(truth[1])
        meta.write_offset.copy_(truth[2])
        graph.replay()
        replayed = out.clone()
        out.fill_(float("nan"))
        step()
        assert torch.equal(out, replayed)
        for got, wanted in zip(replayed.split(tokens), scene.expected(), strict=True):
            assert (got.double() - wanted).abs().max().item() < self.tolerance


def recorded(backend: AttentionBackend, meta: AttentionMeta, step: object) -> torch.cuda.CUDAGraph:
    """Plan for capture, warm up on a side stream, and record."""
    assert callable(step)
    meta.plan = backend.plan(meta, capture=True)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


@on_gpu
@pytest.mark.gpu
class TestFloat32(OnDevice):
    pass


@on_gpu
@pytest.mark.gpu
class TestBfloat16(OnDevice):
    dtype = "bfloat16"
    tolerance = 0.03


@on_gpu
@pytest.mark.gpu
class TestFloat16(OnDevice):
    dtype = "float16"
    tolerance = 6e-3


def test_what_it_cannot_do_is_said_in_words() -> None:
    spec = AttentionSpec(
        4, 2, 80, 64, "float64", 16, window=3, sinks=True, soft_cap=1.0, deterministic=True
    )
    facts = dataclasses.replace(FACTS, capabilities=frozenset())
    assert TritonAttention.supports(spec, facts) == [
        "triton does not run on test",
        "it does not compute in float64",
        "heads have 80 elements, not 16, 32, 64, 128 or 256",
        "keys have 80 elements and values 64",
        "its results depend on the batch; those of 'invariant' do not",
    ]
