from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.plugins.attention.components import ReferenceSettings
from camshaft.plugins.attention.reference import ReferenceAttention
from camshaft.testing.attention import AttentionContract
from camshaft.testing.rejects import failures


class Sound(ReferenceAttention):
    """The reference; the others break one thing each."""

    def layer(self, layer):
        return layer

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(self.layer(layer), q, k, v, kv, meta, out, lse)


def verdict(broken: type[ReferenceAttention], only: tuple[str, ...] = ()) -> list[str]:
    class Contract(AttentionContract):
        backend = broken

        def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
            return broken(ReferenceSettings(), spec, kv_quant)

    return failures(Contract, only=only)


def test_a_good_backend_passes() -> None:
    assert verdict(Sound) == []


class WindowWithoutItself(Sound):
    def layer(self, layer):
        return replace(layer, window=layer.window and layer.window + 1)


class NoWindow(Sound):
    def layer(self, layer):
        return replace(layer, window=0)


class NeverLooksAhead(Sound):
    def __init__(self, settings, spec, kv_quant):
        super().__init__(settings, replace(spec, causal=True), kv_quant)


class NoSinks(Sound):
    def layer(self, layer):
        return replace(layer, sinks=None)


class NoCap(Sound):
    def layer(self, layer):
        return replace(layer, soft_cap=0.0)


class OwnScale(Sound):
    def layer(self, layer):
        return replace(layer, scale=1.0)


class HeadsDealtOut(Sound):
    """Query head h reads kv head h modulo G."""

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        groups = layer.kv_heads
        dealt = q.unflatten(1, (-1, groups)).transpose(1, 2).flatten(1, 2)
        mixed = torch.empty_like(out)
        super().forward(layer, dealt, k, v, kv, meta, mixed, lse)
        out.copy_(mixed.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2))


class SeesTheFuture(Sound):
    """The last token of a request's chunk is what all of its tokens are."""

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(layer, q, k, v, kv, meta, out, lse)
        for start, end in zip(meta.host_query_start, meta.host_query_start[1:], strict=False):
            if end - start > 1:
                out[start] = out[start : start + 2].mean(dim=0)


class ReturnsInstead(Sound):
    """Leaves its result in a tensor of its own."""

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(layer, q, k, v, kv, meta, torch.empty_like(out), lse)


class ForgetsToStore(Sound):
    """Works on the step's own keys, and leaves no trace of them for the next step."""

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        before = {name: tensor.clone() for name, tensor in kv.items()}
        super().forward(layer, q, k, v, kv, meta, out, lse)
        for name, tensor in kv.items():
            tensor.copy_(before[name])


class CleansUp(Sound):
    """Zeroes every page that is not in the step."""

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(layer, q, k, v, kv, meta, out, lse)
        for tensor in kv.values():
            others = torch.ones(len(tensor), dtype=torch.bool)
            others[meta.page_table.long().flatten()] = False
            tensor[others] = 0


class OnePlanAtATime(Sound):
    """Its newest plan is the one that counts."""

    def plan(self, meta, *, capture=False):
        self.newest = replace(meta, plan=super().plan(meta, capture=capture))
        return self.newest.plan

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(layer, q, k, v, kv, self.newest, out, lse)


class ReadsUnwrittenSlots(Sound):
    """Multiplies what lies beyond the length by zero, and zero times NaN is NaN."""

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(layer, q, k, v, kv, meta, out, lse)
        for tensor in kv.values():
            pages = tensor[meta.page_table.long()].float().flatten(1).sum(dim=1)
            out += 0 * pages[meta.request, None, None]


class ValuesLikeKeys(Sound):
    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        padded = torch.nn.functional.pad(v, (0, k.shape[-1] - v.shape[-1]))
        super().forward(layer, q, k, padded, kv, meta, out, lse)


class MixesGroupsUp(Sound):
    """Reads the first group's prefix for the second as well."""

    def plan(self, meta, *, capture=False):
        if meta.shared is not None and len(meta.shared.tokens) > 1:
            columns = meta.shared.tokens[1] // self.spec.page_tokens
            table = meta.page_table.clone()
            first = (meta.shared.group == 0).nonzero()[0][0]
            table[(meta.shared.group == 1).nonzero()[0], :columns] = table[first, :columns]
            meta = replace(meta, page_table=table)
        return super().plan(meta, capture=capture)


class LeavesAPrefixOut(Sound):
    """One member attends to its own token only."""

    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(layer, q, k, v, kv, meta, out, lse)
        if meta.shared is not None:
            member = int(meta.shared.group.argmax())
            out[member] = v[member].repeat_interleave(layer.heads // layer.kv_heads, 0)


class DependsOnTheBatch(Sound):
    def forward(self, layer, q, k, v, kv, meta, out, lse=None):
        super().forward(layer, q, k, v, kv, meta, out, lse)
        out *= 1 + 1e-7 * len(q)


class TakesPositionsForPlaces(Sound):
    """It masks by what is meant for rotary embedding."""

    def plan(self, meta, *, capture=False):
        first = meta.positions[meta.query_start[:-1]]
        return super().plan(replace(meta, context=first), capture=capture)


@pytest.mark.parametrize(
    ("backend", "test"),
    [
        (TakesPositionsForPlaces, "test_equals_dense_attention"),
        (WindowWithoutItself, "test_a_window_counts_the_query_itself"),
        (NoWindow, "test_a_window_counts_the_query_itself"),
        (NeverLooksAhead, "test_without_causality_a_token_sees_all_of_its_text"),
        (NoSinks, "test_sinks_take_their_share"),
        (NoCap, "test_scores_are_capped"),
        (OwnScale, "test_equals_dense_attention"),
        (HeadsDealtOut, "test_heads_are_grouped_as_the_spec_says"),
        (SeesTheFuture, "test_equals_dense_attention"),
        (ReturnsInstead, "test_equals_dense_attention"),
        (ForgetsToStore, "test_equals_dense_attention"),
        (CleansUp, "test_only_the_steps_own_pages_are_written"),
        (ReadsUnwrittenSlots, "test_equals_dense_attention"),
        (ValuesLikeKeys, "test_values_may_be_narrower_than_keys"),
        (OnePlanAtATime, "test_several_plans_may_be_in_use"),
        (MixesGroupsUp, "test_shared_prefixes_count_once"),
        (LeavesAPrefixOut, "test_a_prefix_may_be_all_that_is_stored"),
        (DependsOnTheBatch, "test_deterministic_results_do_not_depend_on_the_batch"),
    ],
)
def test_a_backend_that_breaks_a_promise_is_rejected(
    backend: type[ReferenceAttention], test: str
) -> None:
    assert verdict(backend, only=(test,)) == [test]
