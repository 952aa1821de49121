"""Pieces of a request's keys, merged by the decode kernel: interpreted, compiled, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft.contracts.attention import AttentionSpec, Rope
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.attention.components import TritonSettings
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.testing.attention import AttentionContract, Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention.device import OnDevice
from camshaft.plugins.attention.parts import Decode
from camshaft.plugins.attention.triton import TritonAttention

pytestmark = pytest.mark.usefixtures("loops_with_bounds_from_memory")
SETTINGS = TritonSettings(merge_in_decode=True)


def part_of(scene: Scene) -> Decode:
    """Return the only part of a plan for a scene of decoding requests."""
    meta = scene._meta([(index, *one) for index, one in enumerate(scene.sequences)])
    meta.shared = scene.shared(range(len(scene.sequences)))
    (part,) = scene.backend.plan(meta)
    assert isinstance(part, Decode)
    return part


class OnHost(AttentionContract):
    """Scenes of the contract; its own tests run in `test_triton`, most of them without pieces."""

    __test__ = False
    backend = TritonAttention
    facts = DeviceFacts(
        "cuda", "test", 2**30, frozenset({"float32", "bfloat16"}), frozenset({Capability.TRITON})
    )

    def make(self, spec: AttentionSpec, kv_quant: Any) -> TritonAttention:
        return TritonAttention(SETTINGS, spec, kv_quant)


class OnCard(OnHost):
    device = "cuda"
    dtype = "bfloat16"
    tolerance = 0.03


class Pieces:
    on: OnHost

    def check_pieces(self, scene: Scene, splits: int) -> None:
        part = part_of(scene)
        assert (part.merges, part.splits) == (True, splits)
        self.on.check(scene)
        backend = scene.backend
        assert isinstance(backend, TritonAttention)
        counted = [int(one.count_nonzero()) for one in backend._counters.values()]
        assert counted == ([0] if splits > 1 else [])  # as a replay needs them

    @pytest.mark.parametrize("changes", [{"sinks": True, "soft_cap": 5.0}, {"window": 90}])
    def test_the_last_program_merges_all_splits(self, changes: dict[str, Any]) -> None:
        scene = self.on.scene([(130, 1), (0, 1), (70, 1)], **changes)
        self.check_pieces(scene, part_of(scene).splits)
        assert part_of(scene).splits > 1

    def test_drafts_have_several_rows(self) -> None:
        scene = self.on.scene([(100, 3), (7, 2)], heads=9, kv_heads=3)
        meta = scene._meta([(0, 100, 3), (1, 7, 2)])
        assert [one.splits > 1 for one in scene.backend.plan(meta)] == [True]
        self.on.check(scene)

    @pytest.mark.slow
    def test_splits_and_a_shared_prefix_are_merged_at_once(self) -> None:
        scene = self.on.shared_scene([(230, 1), (300, 1), (5, 1)], [((0, 1), 100)])
        assert part_of(scene).splits > 1
        self.check_pieces(scene, part_of(scene).splits)

    def test_a_request_without_splits_begins_with_what_the_cascade_found(self) -> None:
        sequences = [(100 + index, 1) for index in range(4)] + [(3, 1)]
        prefixes = [(range(0, 4, 2), 96), (range(1, 4, 2), 32)]
        scene = self.on.shared_scene(sequences, prefixes, heads=4, kv_heads=2, sinks=True)
        scene.backend.settings = TritonSettings(merge_in_decode=True, splits=1)  # type: ignore[attr-defined]
        self.check_pieces(scene, 1)

    def test_the_kernel_that_prepares_merges_as_well(self) -> None:
        scene = self.on.scene([(130, 1), (0, 1)], sinks=True)
        meta = scene._meta([(index, *one) for index, one in enumerate(scene.sequences)])
        new = [torch.stack([one[-1] for one in side]) for side in (scene.keys, scene.values)]
        qkv = torch.cat([torch.cat(scene.queries), *new], dim=1).flatten(1)
        results = []
        for merges in (False, True):
            settings = TritonSettings(merge_in_decode=merges)
            backend = TritonAttention(settings, scene.spec, PlainKV(KVNoneSettings()))
            (part,) = meta.plan = backend.plan(meta)
            assert isinstance(part, Decode)
            assert (part.prepares, part.splits > 1) == (True, True)
            q = backend.prepare(scene.layer, qkv, scene.fields, meta)
            assert q is not None
            out = torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
            backend.forward(scene.layer, q, None, None, scene.fields, meta, out)
            results.append(out)
        torch.testing.assert_close(*results, atol=self.on.tolerance, rtol=0)


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
class TestInterpreted(Pieces):
    on = OnHost()


@pytest.mark.gpu
class TestOnDevice(Pieces):
    on = OnCard()


@pytest.mark.compiled
@pytest.mark.parametrize("kernel", ["newest_kernel", "cascade_kernel", "decode_kernel"])
def test_kernels_that_merge_compile_and_fit(
    shared_bytes: tuple[dict[str, int], int], request: pytest.FixtureRequest, kernel: str
) -> None:
    found, limit = shared_bytes
    spec = AttentionSpec(16, 8, 128, 128, "bfloat16", 64, sinks=True)
    settings = SETTINGS.model_copy(update={"splits": 1} if kernel == "cascade_kernel" else {})
    backend = TritonAttention(settings, spec, PlainKV(KVNoneSettings()))
    backend._device = OnDevice(132, early="sm_90" in request.node.name)
    backend.calls.early = backend._device.early
    scene = Scene(backend, spec, [(300, 1), (260, 1)], prefixes=[((0, 1), 256)])
    meta = scene._meta([(0, 300, 1), (1, 260, 1)])
    meta.shared = scene.shared([0, 1]) if kernel == "cascade_kernel" else None
    meta.plan = backend.plan(meta)
    scene.layer.rope = Rope(torch.zeros(400, 64), torch.zeros(400, 64))
    found.clear()
    q = torch.zeros(2, 16, 128, dtype=torch.bfloat16)
    if kernel == "newest_kernel":
        qkv = torch.zeros(2, 32 * 128, dtype=torch.bfloat16)
        prepared = backend.prepare(scene.layer, qkv, scene.fields, meta)
        assert prepared is not None
        q = prepared
    out, lse = torch.zeros(2, 16, 128, dtype=q.dtype), torch.zeros(2, 16)
    backend.forward(scene.layer, q, None, None, scene.fields, meta, out, lse)
    assert set(found) == ({"cascade_kernel", "decode_kernel"} if meta.shared else {kernel})
    assert max(found.values()) <= limit
