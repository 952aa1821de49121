"""Stand-ins for attention libraries: published signatures, checked arguments, right answers.

Signatures and meanings are those of flash-attn 2.8 and 3.0 and of flashinfer-python 0.7. A wrong
layout, length or window gives a wrong answer or a failed check here, as it would there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from camshaft.testing.attention import Scene


def fake_module(name: str, **functions: object) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, origin="fake")
    for one, function in functions.items():
        setattr(module, one, function)
    return module


@contextmanager
def installed(*modules: ModuleType, absent: tuple[str, ...] = ()) -> Iterator[None]:
    """Let imports find these modules, and not find the absent ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in absent:
            patch.delitem(sys.modules, name, raising=False)
        for module in modules:
            patch.setitem(sys.modules, module.__name__, module)
        yield


def attention(q, k, v, *, scale, left=-1, cap=0.0, causal=True):
    """Attend with n queries [n, H, D], the last of s keys [s, G, D]; return result and sums."""
    group = q.shape[1] // k.shape[1]
    keys, values = (one.double().repeat_interleave(group, dim=1) for one in (k, v))
    scores = torch.einsum("nhd,shd->nhs", q.double(), keys) * scale
    if cap:
        scores = cap * torch.tanh(scores / cap)
    place = torch.arange(len(k))
    query = torch.arange(len(q))[:, None] + len(k) - len(q)
    hidden = torch.zeros(len(q), len(k), dtype=torch.bool)
    if causal:
        hidden |= place > query
    if left >= 0:
        hidden |= place < query - left
    scores = scores.masked_fill(hidden[:, None], -math.inf)
    result = torch.einsum("nhs,shd->nhd", scores.softmax(-1), values)
    return result.to(q.dtype), scores.logsumexp(-1).float()


def of_pages(cache, pages, length):
    """Return the first tokens of pages in [N, P, G, D], as [length, G, D]."""
    assert length <= len(pages) * cache.shape[1], "a request has fewer pages than keys"
    return cache[pages.long()].flatten(0, 1)[:length]


def check_int32(*tensors: torch.Tensor) -> None:
    for one in tensors:
        assert one.dtype == torch.int32
        assert one.is_contiguous()


def check_pages(q, k_cache, v_cache, table, page_multiple):
    assert q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1
    assert q.dtype == k_cache.dtype == v_cache.dtype
    assert k_cache.shape[1] % page_multiple == 0, "page size"
    assert table.dtype == torch.int32
    assert table.stride(-1) == 1
    assert q.shape[-1] == k_cache.shape[-1]
    assert q.shape[-2] % k_cache.shape[2] == 0


def one_by_one(queries, k_cache, v_cache, lengths, table, **how: Any):
    """Attend request by request; `queries` are their rows."""
    return [
        attention(q, of_pages(k_cache, pages, length), of_pages(v_cache, pages, length), **how)
        for q, pages, length in zip(queries, table, lengths.tolist(), strict=True)
    ]


def counts_of(starts, tokens):
    """Return the lengths of rows that begin at `starts`, int32 [B + 1]."""
    check_int32(starts)
    assert starts[0] == 0
    assert starts[-1] == tokens
    return starts.diff()


def _window(window_size, causal):
    left, right = window_size
    assert causal
    assert right in (-1, 0)
    return left


def flash_attn_2() -> ModuleType:
    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        check_pages(q, k, v, block_table, 256)
        counts = counts_of(cu_seqlens_q, len(q))
        lengths = counts_of(cu_seqlens_k, cu_seqlens_k[-1])
        assert len(block_table) == len(counts) == len(lengths)
        assert counts.max() <= max_seqlen_q
        assert lengths.max() <= max_seqlen_k
        left = _window(window_size, causal)
        rows = q.split(counts.tolist())
        how = {"scale": softmax_scale, "left": left, "cap": softcap}
        parts = one_by_one(rows, k, v, lengths, block_table, **how)
        result, sums = (torch.cat(side) for side in zip(*parts, strict=True))
        return (result, sums.T, None) if return_attn_probs else result

    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None,
        cache_batch_idx=None, cache_leftpad=None, block_table=None, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, rotary_interleaved=True,
        alibi_slopes=None, num_splits=0, return_softmax_lse=False,
    ):  # fmt: skip
        check_pages(q, k_cache, v_cache, block_table, 256)
        check_int32(cache_seqlens)
        left = _window(window_size, causal)
        how = {"scale": softmax_scale, "left": left, "cap": softcap}
        parts = one_by_one(q, k_cache, v_cache, cache_seqlens, block_table, **how)
        result, sums = (torch.stack(side) for side in zip(*parts, strict=True))
        return (result, sums.transpose(1, 2)) if return_softmax_lse else result

    return fake_module(
        "flash_attn",
        flash_attn_varlen_func=flash_attn_varlen_func,
        flash_attn_with_kvcache=flash_attn_with_kvcache,
    )


def flash_attn_3() -> ModuleType:
    def flash_attn_with_kvcache(
        q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None,
        cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None,
        cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None,
        q_descale=None, k_descale=None, v_descale=None, softmax_scale=None, causal=False,
        window_size=(-1, -1), attention_chunk=0, softcap=0.0, rotary_interleaved=True,
        scheduler_metadata=None, num_splits=0, pack_gqa=None, sm_margin=0,
        return_softmax_lse=False,
    ):  # fmt: skip
        check_pages(q, k_cache, v_cache, page_table, 1)
        check_int32(cache_seqlens)
        how = {"scale": softmax_scale, "left": _window(window_size, causal), "cap": softcap}
        if cu_seqlens_q is None:
            parts = one_by_one(q, k_cache, v_cache, cache_seqlens, page_table, **how)
            result, sums = (torch.stack(side) for side in zip(*parts, strict=True))
            sums = sums.transpose(1, 2)
        else:
            counts = counts_of(cu_seqlens_q, len(q))
            assert counts.max() <= max_seqlen_q
            rows = q.split(counts.tolist())
            parts = one_by_one(rows, k_cache, v_cache, cache_seqlens, page_table, **how)
            result, sums = (torch.cat(side) for side in zip(*parts, strict=True))
            sums = sums.T
        # the library returns what its splits left as well
        return (result, sums, None, None) if return_softmax_lse else result

    return fake_module("flash_attn_interface", flash_attn_with_kvcache=flash_attn_with_kvcache)


class FlashInferWrapper:
    """What both wrappers share: keys in compressed sparse rows of pages, sums to the base 2."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        assert float_workspace_buffer.dtype == torch.uint8
        assert not float_workspace_buffer.any()
        assert kv_layout in ("NHD", "HND")
        self.layout = kv_layout
        self.planned: Any = None  # run needs a plan

    def _plan(self, queries, indptr, indices, last_page_len, heads, kv_heads, dim, page_size, how):
        check_int32(queries, indptr, indices, last_page_len)
        assert indptr.device.type == last_page_len.device.type == "cpu"
        counts = indptr.diff()
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        assert (counts > 0).all()
        assert len(last_page_len) == len(counts) == len(queries) - 1
        assert (last_page_len >= 1).all()
        assert (last_page_len <= page_size).all()
        self.planned = SimpleNamespace(
            counts=queries.diff().tolist(),
            pages=indices.split(counts.tolist()),
            lengths=(counts - 1) * page_size + last_page_len,
            shape=(heads, kv_heads, dim, page_size),
            how=how,
        )

    def _run(self, q, paged_kv_cache, q_scale, out, lse, return_lse):
        plan = self.planned
        heads, kv_heads, dim, page_size = plan.shape
        assert q.shape == (sum(plan.counts), heads, dim)
        assert q.is_contiguous()
        cache = [one.transpose(1, 2) if self.layout == "HND" else one for one in paged_kv_cache]
        for one in cache:
            assert one.shape[1:] == (page_size, kv_heads, dim)
            assert one.dtype == plan.how["kv_data_type"]
            assert q.dtype == plan.how["q_data_type"]
        assert out.shape == q.shape
        assert out.is_contiguous()
        parts = one_by_one(
            q.split(plan.counts),
            cache[0],
            cache[1],
            plan.lengths,
            plan.pages,
            scale=dim**-0.5 * (1.0 if q_scale is None else q_scale),
            left=plan.how["window_left"],
            cap=plan.how["logits_soft_cap"],
            causal=plan.how["causal"],
        )
        result, sums = (torch.cat(side) for side in zip(*parts, strict=True))
        out.copy_(result)
        if not return_lse:
            return out
        assert lse.shape == q.shape[:2]
        assert lse.dtype == torch.float32
        return out, lse.copy_(sums / math.log(2))


class Decode(FlashInferWrapper):
    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False,
        use_tensor_cores=False, paged_kv_indptr_buffer=None, paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None, backend="auto",
    ):  # fmt: skip
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *,
        pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, q_data_type="float16",
        kv_data_type=None, sm_scale=None,
    ):  # fmt: skip
        how = {
            "window_left": window_left,
            "logits_soft_cap": logits_soft_cap,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "causal": False,  # one query, which sees every key
        }
        queries = torch.arange(len(indptr), dtype=torch.int32)
        sizes = (num_qo_heads, num_kv_heads, head_dim, page_size)
        self._plan(queries, indptr, indices, last_page_len, *sizes, how)

    def run(
        self, q, paged_kv_cache, *, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
        return_lse=False,
    ):  # fmt: skip
        return self._run(q, paged_kv_cache, q_scale, out, lse, return_lse)


class Prefill(FlashInferWrapper):
    def __init__(
        self, float_workspace_buffer, kv_layout="NHD", use_cuda_graph=False, qo_indptr_buf=None,
        paged_kv_indptr_buf=None, paged_kv_indices_buf=None, paged_kv_last_page_len_buf=None,
        custom_mask_buf=None, mask_indptr_buf=None, backend="auto",
    ):  # fmt: skip
        super().__init__(float_workspace_buffer, kv_layout)

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, head_dim_vo=None, custom_mask=None,
        packed_custom_mask=None, causal=False, pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False, sm_scale=None, window_left=-1, logits_soft_cap=None,
        rope_scale=None, rope_theta=None, q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        how = {
            "window_left": window_left,
            "logits_soft_cap": logits_soft_cap,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "causal": causal,
        }
        assert qo_indptr[0] == 0
        sizes = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        lists = (paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        self._plan(qo_indptr, *lists, *sizes, how)

    def run(
        self, q, paged_kv_cache, *, q_scale=None, k_scale=None, v_scale=None, out=None, lse=None,
        return_lse=False,
    ):  # fmt: skip
        return self._run(q, paged_kv_cache, q_scale, out, lse, return_lse)


def flashinfer() -> ModuleType:
    return fake_module(
        "flashinfer",
        BatchDecodeWithPagedKVCacheWrapper=Decode,
        BatchPrefillWithPagedKVCacheWrapper=Prefill,
    )


def sums_of(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a backend says of the log of sums [T, H], in step order, and the truth."""
    meta = scene._meta([(index, *one) for index, one in enumerate(scene.sequences)])
    q = torch.cat(scene.queries)
    k, v = (
        torch.cat([one[before:] for one, (before, _) in zip(side, scene.sequences, strict=True)])
        for side in (scene.keys, scene.values)
    )
    lse = torch.full(q.shape[:2], math.nan)
    meta.plan = scene.backend.plan(meta)
    scene.backend.forward(scene.layer, q, k, v, scene.fields, meta, torch.empty_like(q), lse)
    layer = scene.layer
    how = {"scale": layer.scale, "left": layer.window - 1, "cap": layer.soft_cap}
    wanted = [
        attention(*one, **how)[1]
        for one in zip(scene.queries, scene.keys, scene.values, strict=True)
    ]
    return lse, torch.cat(wanted)
