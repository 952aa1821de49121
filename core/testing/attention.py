"""The contract of attention backends, as tests to inherit. Needs torch."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from ..component import Settings
from ..contracts.attention import (
    AttentionBackend,
    AttentionLayer,
    AttentionMeta,
    AttentionSpec,
    GraphLevel,
    SharedPrefixes,
)
from ..contracts.kv_quant import KVQuant
from ..facts import DeviceFacts
from ..registry import Registry

Sequences = list[tuple[int, int]]
"""(tokens in pages before the step, tokens in the step) of each request."""

Prefixes = Sequence[tuple[Sequence[int], int]]
"""(requests, tokens that they share) of each group."""

CPU = DeviceFacts("cpu", "test", 2**30, frozenset({"float32", "bfloat16"}))


class Scene:
    """Random requests over scattered pages, and the answer that a dense computation gives."""

    def __init__(
        self,
        backend: AttentionBackend,
        spec: AttentionSpec,
        sequences: Sequences,
        *,
        seed: int = 0,
        layer: AttentionLayer | None = None,
        device: str = "cpu",
        prefixes: Prefixes = (),
        kv_quant: KVQuant | None = None,
    ) -> None:
        self.kv_quant = kv_quant
        self.backend, self.spec, self.sequences, self.device = backend, spec, sequences, device
        generator = torch.Generator().manual_seed(seed)
        dtype: torch.dtype = getattr(torch, spec.dtype)

        def random_heads(tokens: int, heads: int, width: int) -> torch.Tensor:
            return torch.randn(tokens, heads, width, generator=generator).to(device, dtype)

        total = [before + count for before, count in sequences]
        self.keys = [random_heads(one, spec.kv_heads, spec.head_dim) for one in total]
        self.values = [random_heads(one, spec.kv_heads, spec.value_dim) for one in total]
        self.queries = [random_heads(n, spec.heads, spec.head_dim) for _, n in sequences]
        self.layer = layer or layer_of(spec, generator)
        pages = [-(-one // spec.page_tokens) for one in total]
        ids = list(range(1, sum(pages) + 8))
        random.Random(seed).shuffle(ids)
        self.tables = [[ids.pop() for _ in range(count)] for count in pages]
        self.pages = len(ids) + sum(pages) + 1
        self.prefixes = prefixes
        for members, tokens in prefixes:
            self._share(members, tokens)
        self.fields = self._fields()
        self._store_context()

    def _share(self, members: Sequence[int], tokens: int) -> None:
        """Let members begin with the first one's tokens, in its pages."""
        leader, columns = members[0], tokens // self.spec.page_tokens
        for member in members[1:]:
            self.keys[member][:tokens] = self.keys[leader][:tokens]
            self.values[member][:tokens] = self.values[leader][:tokens]
            self.tables[member][:columns] = self.tables[leader][:columns]

    def shared(self, requests: Sequence[int]) -> SharedPrefixes | None:
        """Return what these requests share, in this order."""
        if not self.prefixes:
            return None
        group = np.full(len(requests), -1, dtype=np.int32)
        for number, (members, _) in enumerate(self.prefixes):
            group[[requests.index(member) for member in members]] = number
        return SharedPrefixes(group, np.array([n for _, n in self.prefixes], dtype=np.int32))

    def _fields(self) -> dict[str, torch.Tensor]:
        """Return pages whose unwritten slots hold what a backend must bear."""
        fields = {}
        for one in self.backend.kv_layout().fields:
            dtype: torch.dtype = getattr(torch, one.dtype)
            tensor = torch.zeros((self.pages, *one.shape), dtype=dtype, device=self.device)
            if not self.backend.needs_zeroed_pages and dtype.is_floating_point:
                tensor.fill_(float("nan"))
            fields[one.name] = tensor
        return fields

    def _store_context(self) -> None:
        """Write what earlier steps left, through the backend itself, one chunk a request."""
        earlier = [(0, before) for before, _ in self.sequences]
        if any(before for _, before in earlier):
            keep = [index for index, (_, before) in enumerate(earlier) if before]
            keep.sort(key=lambda index: earlier[index][1] != 1)  # decode-first, as in every step
            self._run([(index, 0, earlier[index][1]) for index in keep])

    def run(self) -> list[torch.Tensor]:
        """Run the step; return the output of each request [tokens, H, Dv]."""
        return self.planned()()

    def planned(self) -> Callable[[], list[torch.Tensor]]:
        """Plan the step; return what runs it."""
        order = sorted(range(len(self.sequences)), key=lambda index: self.sequences[index][1] != 1)
        decoding = [index for index in order if self.sequences[index][1] == 1]
        parts = [(index, *self.sequences[index]) for index in order]
        run = self._planned(parts, self.shared(decoding))

        def in_order() -> list[torch.Tensor]:
            outputs = run()
            return [outputs[order.index(index)] for index in range(len(order))]

        return in_order

    def _run(self, parts: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """Run (request, context, tokens) as one step, in this order."""
        return self._planned(parts)()

    def _planned(
        self, parts: list[tuple[int, int, int]], shared: SharedPrefixes | None = None
    ) -> Callable[[], list[torch.Tensor]]:
        """Plan such a step; return what runs it."""
        meta = self._meta(parts)
        meta.shared = shared
        spans = [slice(before, before + count) for _, before, count in parts]
        k = torch.cat(
            [self.keys[index][span] for (index, _, _), span in zip(parts, spans, strict=True)]
        )
        v = torch.cat(
            [self.values[index][span] for (index, _, _), span in zip(parts, spans, strict=True)]
        )
        q = torch.cat(
            [
                self.queries[index]
                if (before, count) == self.sequences[index]
                else torch.zeros_like(self.keys[index][:1, :1]).expand(
                    count, self.spec.heads, self.spec.head_dim
                )
                for index, before, count in parts
            ]
        )
        meta.plan = self.backend.plan(meta)

        def run() -> list[torch.Tensor]:
            out = q.new_full((len(q), self.spec.heads, self.spec.value_dim), float("nan"))
            self.backend.forward(self.layer, q, k, v, self.fields, meta, out)
            return list(out.split([count for _, _, count in parts]))

        return run

    def replay(self, backend: AttentionBackend, meta: AttentionMeta) -> list[torch.Tensor]:
        """Run this scene's decode step with a plan that was made before, in its buffers."""
        mine = self._meta([(index, *one) for index, one in enumerate(self.sequences)])
        for name in ("context", "positions", "page_table", "write_page", "write_offset"):
            getattr(meta, name).copy_(getattr(mine, name))
        q = torch.cat(self.queries)
        k, v = (torch.cat([one[-1:] for one in side]) for side in (self.keys, self.values))
        out = q.new_full((len(q), self.spec.heads, self.spec.value_dim), float("nan"))
        backend.forward(self.layer, q, k, v, self.fields, meta, out)
        return list(out.split(1))

    def _meta(self, parts: list[tuple[int, int, int]]) -> AttentionMeta:
        page = self.spec.page_tokens
        width = max(len(self.tables[index]) for index, _, _ in parts)
        table = torch.tensor(
            [self.tables[index] + [0] * (width - len(self.tables[index])) for index, _, _ in parts],
            dtype=torch.int32,
            device=self.device,
        )
        context = np.array([before for _, before, _ in parts], dtype=np.int32)
        counts = np.array([count for _, _, count in parts], dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        request = np.repeat(np.arange(len(parts)), counts)
        positions = context[request] + np.arange(starts[-1]) - starts[request]
        where = torch.from_numpy(request).to(self.device)
        at = torch.from_numpy(positions).to(self.device)
        return AttentionMeta(
            decode_requests=int((counts == 1).sum()),
            query_start=torch.from_numpy(starts).to(self.device),
            context=torch.from_numpy(context).to(self.device),
            positions=at + 3 * where,  # where modules leave gaps, places are not positions
            request=where,
            page_table=table,
            write_page=table[where, at // page].long(),
            write_offset=at % page,
            host_query_start=starts,
            host_context=context,
        )

    def expected(self) -> list[torch.Tensor]:
        """Return the dense answer in float64."""
        return [
            dense(
                self.queries[index],
                *self.stored(index),
                before,
                self.layer,
                causal=self.spec.causal,
            )
            for index, (before, _) in enumerate(self.sequences)
        ]

    def stored(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of a request as they are read back from pages."""
        k, v = self.keys[index], self.values[index]
        if self.kv_quant is None:
            return k, v
        page, order = self.spec.page_tokens, "heads_first"
        pages = -(-len(k) // page)
        fields = {
            one.name: torch.zeros(
                (pages, *one.shape), dtype=getattr(torch, one.dtype), device=self.device
            )
            for one in self.kv_quant.layout(self.spec, order).fields
        }
        at = torch.arange(len(k), device=self.device)
        self.kv_quant.write(fields, at // page, at % page, k, v, order)
        every = torch.arange(pages, device=self.device)
        read = self.kv_quant.read(fields, every, torch.float32, order)  # [n, G, P, D]
        k, v = (one.transpose(1, 2).flatten(0, 1)[: len(k)] for one in read)
        return k, v


def layer_of(spec: AttentionSpec, generator: torch.Generator) -> AttentionLayer:
    """Return a layer that asks for everything that the spec does."""
    return AttentionLayer(
        index=0,
        group=0,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        value_dim=spec.value_dim,
        scale=spec.head_dim**-0.5,
        window=spec.window,
        soft_cap=spec.soft_cap,
        sinks=torch.randn(spec.heads, generator=generator) if spec.sinks else None,
    )


def dense(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    before: int,
    layer: AttentionLayer,
    *,
    causal: bool = True,
) -> torch.Tensor:
    """Attend without pages, in float64: q [n, H, D] at positions `before` and on."""
    repeat = layer.heads // layer.kv_heads
    keys = k.double().repeat_interleave(repeat, dim=1)
    values = v.double().repeat_interleave(repeat, dim=1)
    scores = torch.einsum("nhd,shd->hns", q.double(), keys) * layer.scale
    if layer.soft_cap:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    place = torch.arange(k.shape[0], device=q.device)
    query = torch.arange(before, before + q.shape[0], device=q.device)[:, None]
    hidden = place > query if causal else torch.zeros_like(place > query)
    if layer.window:
        hidden |= place <= query - layer.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.to(scores)[:, None, None].expand(-1, q.shape[0], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., : k.shape[0]]
    return torch.einsum("hns,shd->nhd", weights, values)


class AttentionContract:
    """Subclass it, define `make` and `backend`, and run pytest.

    What the backend says it does not support is skipped, not failed. Where the form of pages
    rounds, a step's own keys and values count as they are read back, like all others: so chunks
    and cached prefixes change no answer.

    Attributes:
        form: The KVQuant that pages are stored with.
    """

    form: str = "none"

    facts: DeviceFacts = CPU
    device: str = "cpu"
    dtype: str = "float32"
    tolerance: float = 2e-5

    backend: type[AttentionBackend]

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        """Return the backend under test."""
        raise NotImplementedError

    def spec(self, **changes: object) -> AttentionSpec:
        """Return grouped-query attention with small pages."""
        plain = AttentionSpec(
            heads=6, kv_heads=2, head_dim=16, value_dim=16, dtype=self.dtype, page_tokens=4
        )
        return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]

    def scene(self, sequences: Sequences, seed: int = 0, **changes: object) -> Scene:
        """Return a scene, or skip if the backend does not support the spec."""
        return self.shared_scene(sequences, (), seed, **changes)

    def shared_scene(
        self, sequences: Sequences, prefixes: Prefixes, seed: int = 0, **changes: object
    ) -> Scene:
        """Return a scene in which requests share prefixes."""
        spec = self.spec(**changes)
        reasons = self.backend.supports(spec, self.facts)
        if reasons:
            pytest.skip("; ".join(reasons))
        kv_quant: KVQuant = Registry.discover().get("kv_quant", self.form).load()(Settings())
        return Scene(
            self.make(spec, kv_quant),
            spec,
            sequences,
            seed=seed,
            device=self.device,
            prefixes=prefixes,
            kv_quant=None if self.form == "none" else kv_quant,
        )

    def check(self, scene: Scene) -> None:
        """Compare with the dense answer."""
        for index, (got, wanted) in enumerate(zip(scene.run(), scene.expected(), strict=True)):
            gap = (got.double() - wanted).abs().max().item()
            assert gap < self.tolerance, f"request {index} of {scene.sequences} is off by {gap:.2e}"

    @pytest.mark.parametrize(
        "sequences",
        [
            [(0, 1)],
            [(0, 9)],
            [(5, 1), (16, 1), (0, 1)],
            [(8, 7), (3, 12)],
            [(5, 1), (4, 1), (6, 5), (0, 11), (3, 2)],
        ],
        ids=["first token", "prompt", "decodes", "chunks", "mixed"],
    )
    def test_equals_dense_attention(self, sequences: Sequences) -> None:
        """For every kind of step."""
        self.check(self.scene(sequences))

    def test_several_plans_may_be_in_use(self) -> None:
        """Where a backend says so: parts of a step take turns, layer by layer."""
        first = self.scene([(5, 1), (16, 1), (0, 1), (0, 9)])
        if not first.backend.side_by_side:
            pytest.skip("it has one plan at a time, and says so")
        sequences = [(37, 1), (3, 1), (8, 7)]
        second = Scene(
            first.backend,
            first.spec,
            sequences,
            seed=1,
            device=self.device,
            kv_quant=first.kv_quant,
        )
        turns = [first.planned(), second.planned()]
        for number in (1, 0, 1):
            wanted = (first, second)[number].expected()
            for got, dense_answer in zip(turns[number](), wanted, strict=True):
                assert (got.double() - dense_answer).abs().max().item() < self.tolerance

    @pytest.mark.parametrize("heads", [(2, 2), (8, 1), (9, 3)])
    def test_heads_are_grouped_as_the_spec_says(self, heads: tuple[int, int]) -> None:
        """Query heads of a group are neighbours."""
        self.check(self.scene([(7, 1), (2, 6)], heads=heads[0], kv_heads=heads[1]))

    @pytest.mark.parametrize("window", [1, 4, 7])
    def test_a_window_counts_the_query_itself(self, window: int) -> None:
        """Token i sees keys i - window + 1 to i."""
        scene = self.scene([(9, 1), (5, 6), (0, 12)], window=window)
        self.check(scene)

    def test_without_causality_a_token_sees_all_of_its_text(self) -> None:
        """Also what is behind it; a text then comes in one step."""
        self.check(self.scene([(0, 1), (0, 7), (0, 1), (0, 16)], causal=False))

    def test_sinks_take_their_share(self) -> None:
        """A learned logit per head takes part in the softmax and has no value."""
        self.check(self.scene([(9, 1), (0, 5)], sinks=True))

    def test_scores_are_capped(self) -> None:
        """Soft cap, before the mask."""
        self.check(self.scene([(9, 1), (0, 5)], soft_cap=0.7))

    def test_values_may_be_narrower_than_keys(self) -> None:
        """K and v sizes may differ."""
        self.check(self.scene([(9, 1), (0, 5)], value_dim=8))

    def test_only_the_steps_own_pages_are_written(self) -> None:
        """Pages of requests that are not in the step stay as they are."""
        scene = self.scene([(5, 1), (0, 6)])
        mine = {page for table in scene.tables for page in table}
        others = [page for page in range(1, scene.pages) if page not in mine]
        assert others
        for tensor in scene.fields.values():
            tensor[others] = 3
        scene.run()
        for name, tensor in scene.fields.items():
            assert (tensor[others] == 3).all(), name

    def test_what_is_stored_survives_the_next_steps(self) -> None:
        """A second step over the same pages sees the first one's keys."""
        scene = self.scene([(13, 1), (8, 4)])
        self.check(scene)
        self.check(scene)

    @pytest.mark.parametrize(
        "changes",
        [{}, {"heads": 9, "kv_heads": 3}, {"sinks": True, "soft_cap": 0.7}, {"window": 30}],
        ids=["plain", "three heads", "sinks and cap", "window"],
    )
    def test_shared_prefixes_count_once(self, changes: dict[str, Any]) -> None:
        """Members of a group see its prefix and their own tokens; others see only theirs.

        Members stand apart in the step, and prefixes end within a tile of keys of most kernels.
        """
        sequences = [(71, 1), (40, 1), (68, 1), (3, 1), (51, 1), (90, 1), (9, 4)]
        prefixes = [((0, 2, 5), 68), ((1, 4), 40)]
        self.check(self.shared_scene(sequences, prefixes, **changes))

    def test_a_prefix_may_be_all_that_is_stored(self) -> None:
        """The step's own token is then the only one that a member does not share."""
        self.check(self.shared_scene([(64, 1), (64, 1)], [((0, 1), 64)]))

    def test_a_recording_learns_who_shares_what(self) -> None:
        """Its plan was made before anybody shared, and serves one sharing after another."""
        scene = self.scene([(70, 1), (68, 1), (72, 1), (69, 1)])
        backend = scene.backend
        if backend.graph_level == GraphLevel.NEVER or not backend.sharing_pays_from:
            pytest.skip("it does not record decode steps with shared prefixes")
        meta = scene._meta([(index, *one) for index, one in enumerate(scene.sequences)])
        nobody = SharedPrefixes(np.full(4, -1, dtype=np.int32), np.zeros(0, dtype=np.int32))
        meta.shared = nobody
        meta.plan = backend.plan(meta, capture=True)
        sharings: list[Prefixes] = [[((0, 2, 3), 68)], [((1, 0), 64), ((2, 3), 68)], []]
        for seed, prefixes in enumerate(sharings):
            replayed = self.shared_scene(scene.sequences, prefixes, seed)
            backend.share(meta.plan, replayed.shared(range(4)) or nobody)
            for got, wanted in zip(
                replayed.replay(backend, meta), replayed.expected(), strict=True
            ):
                assert (got.double() - wanted).abs().max().item() < self.tolerance, prefixes

    def test_deterministic_results_do_not_depend_on_the_batch(self) -> None:
        """To the bit, if the spec asks for it."""
        both = self.scene([(9, 1), (0, 7), (2, 3)], deterministic=True)
        for index, got in enumerate(both.run()):
            alone = self.scene([(9, 1), (0, 7), (2, 3)], deterministic=True)
            only = alone._run([(index, *alone.sequences[index])])[0]
            assert torch.equal(got, only), f"request {index} differs alone"
