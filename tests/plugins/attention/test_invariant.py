"""The results of `invariant` are the same to the bit however a sequence is cut and accompanied."""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise
from typing import Any

import pytest
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.errors import PluginError
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.attention.components import InvariantSettings
from camshaft.testing.attention import AttentionContract, Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention.invariant import InvariantAttention, invariant_blocks

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
on_cpu = pytest.mark.interpreted
# compiled and interpreted kernels cannot live in one process
on_gpu = pytest.mark.skipif(interpreted, reason="TRITON_INTERPRET=1 is set")
pytestmark = pytest.mark.usefixtures("loops_with_bounds_from_memory")

DTYPES = frozenset({"float32", "bfloat16", "float16"})
FACTS = DeviceFacts("cuda", "test", 2**30, DTYPES, frozenset({Capability.TRITON}))
Step = list[tuple[int, int, int]]
"""(sequence, tokens before the step, tokens in the step), those with one token first."""


def attended(scene: Scene, steps: list[Step]) -> list[dict[int, torch.Tensor]]:
    """Run steps over whole sequences; return each sequence's result by position."""
    found: list[dict[int, torch.Tensor]] = [{} for _ in scene.sequences]
    for step in steps:
        meta = scene._meta(step)
        q, k, v = (
            torch.cat([side[index][before : before + count] for index, before, count in step])
            for side in (scene.queries, scene.keys, scene.values)
        )
        out = torch.full_like(q, float("nan"))
        meta.plan = scene.backend.plan(meta)
        scene.backend.forward(scene.layer, q, k, v, scene.fields, meta, out)
        rows = iter(out)
        for index, before, count in step:
            found[index] |= {place: next(rows) for place in range(before, before + count)}
    return found


def chunks(index: int, total: int, size: int, first: int = 0) -> list[Step]:
    """Cut a sequence into chunks, decoded if they have one token; the first one may be longer."""
    borders = [0, *range(first or size, total, size), total]
    return [[(index, low, high - low)] for low, high in pairwise(borders)]


class InvariantContract(AttentionContract):
    backend = InvariantAttention
    facts = FACTS
    lengths: tuple[int, ...] = (100, 40)
    sizes: tuple[int, ...] = (9, 37)
    decoded = 5
    shape: dict[str, int] = {}  # noqa: RUF012 - read only

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return InvariantAttention(InvariantSettings(), spec, kv_quant)

    @pytest.mark.parametrize(
        "changes",
        [{}, {"sinks": True, "soft_cap": 0.7}, {"window": 30}],
        ids=["plain", "sinks and cap", "window"],
    )
    def test_a_token_has_the_same_bits_in_any_chunk_and_company(
        self, changes: dict[str, Any]
    ) -> None:
        """Whole, in chunks of many sizes, decoded, and with others beside."""
        lengths, numbers = self.lengths, range(len(self.lengths))
        sequences = [(0, length) for length in lengths]
        scene = self.scene(sequences, deterministic=True, **self.shape, **changes)
        wanted = attended(scene, [[(index, 0, lengths[index])] for index in numbers])
        plans = [
            [step for index in numbers for step in chunks(index, lengths[index], size)]
            for size in self.sizes
        ]
        plans.append(chunks(0, lengths[0], 1, first=lengths[0] - self.decoded))
        plans.append([[(index, 0, lengths[index]) for index in numbers]])
        halves = [chunks(index, lengths[index], lengths[index] // 2) for index in numbers]
        plans.append([[half[0] for (half, *_) in halves], [half[0] for (_, half, *_) in halves]])
        plans.append([[(1, 0, lengths[1] - 1)], [(1, lengths[1] - 1, 1), (0, 0, lengths[0])]])
        for steps in plans:
            for index, rows in enumerate(attended(scene, steps)):
                for place, row in rows.items():
                    assert torch.equal(row, wanted[index][place]), (index, place, steps[0])


@on_cpu
class TestInterpreted(InvariantContract):
    pass


@on_cpu
class TestInterpretedInFloat16(InvariantContract):
    dtype = "float16"
    tolerance = 5e-3


class OnDevice(InvariantContract):
    device = "cuda"
    lengths = (1500, 333, 70)
    sizes = (37, 64, 512)
    decoded = 100
    shape = {"page_tokens": 16, "heads": 16, "kv_heads": 8, "head_dim": 128, "value_dim": 128}  # noqa: RUF012


@on_gpu
@pytest.mark.gpu
class TestFloat32(OnDevice):
    pass


@on_gpu
@pytest.mark.gpu
class TestBfloat16(OnDevice):
    dtype = "bfloat16"
    tolerance = 0.03

    def test_one_request_among_64(self) -> None:
        """Each at its own length, all decoding."""
        sequences = [(1 + index * 53 % 2000, 1) for index in range(64)]
        scene = self.scene(sequences, deterministic=True, **self.shape)
        together = scene.run()
        for index, (before, count) in enumerate(sequences):
            assert torch.equal(scene._run([(index, before, count)])[0], together[index])

    def test_groups_of_every_size(self) -> None:
        """Prompts and decodes agree where rows of a tile are tokens times heads, unevenly."""
        for heads, kv_heads, width in ((32, 8, 64), (9, 3, 64), (16, 1, 128), (4, 4, 256)):
            shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": width, "value_dim": width}
            scene = self.scene([(0, 300)], deterministic=True, page_tokens=16, **shape)
            whole = attended(scene, [[(0, 0, 300)]])[0]
            cut = attended(scene, chunks(0, 300, 1, first=290))[0]
            assert all(torch.equal(whole[place], row) for place, row in cut.items()), shape


def test_single_tokens_get_smaller_tiles_only_where_that_changes_no_bit() -> None:
    one, many = invariant_blocks(2, 128, 2, any_rows=True)
    assert (one.rows, one.warps, many.rows, many.warps) == (64, 4, 128, 8)
    assert one.keys == many.keys
    assert (one.fuses, many.fuses) == (False, False)
    for itemsize, group, any_rows in ((2, 2, False), (4, 2, True), (2, 128, True)):
        one, many = invariant_blocks(itemsize, 128, group, any_rows=any_rows)
        assert one == many


def test_it_serves_what_triton_refuses_as_dependent_on_the_batch() -> None:
    spec = AttentionSpec(4, 2, 64, 64, "bfloat16", 16, deterministic=True)
    assert InvariantAttention.supports(spec, FACTS) == []
    narrow = dataclasses.replace(spec, value_dim=32)
    assert InvariantAttention.supports(narrow, FACTS) == ["keys have 64 elements and values 32"]


def test_pages_in_a_form_that_its_kernels_do_not_know_are_refused() -> None:
    class Int3(KVQuant):
        name = "int3"
        layout = write = read = None  # type: ignore[assignment]

    spec = AttentionSpec(4, 2, 64, 64, "float32", 16)
    with pytest.raises(PluginError, match="'invariant' cannot read keys and values stored as"):
        InvariantAttention(InvariantSettings(), spec, Int3())
