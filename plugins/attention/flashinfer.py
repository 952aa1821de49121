"""Attention by FlashInfer, as that library publishes it: plan on the host, run a layer.

Source: Ye et al., "FlashInfer: Efficient and Customizable Attention Engine for LLM Inference
Serving", arXiv 2501.01005. The library compiles its kernels when they are first needed, for which
it wants nvcc.

Decode steps cannot be recorded. The library's schedule of a step is made by `plan` on the host,
from that step's lengths, and lies in buffers that every replay would need filled anew; a recorded
step here plans once, and its lengths live on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose, log
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from camshaft.contracts.attention import AttentionBackend, GraphLevel

from .device import staged
from .libraries import common_limits, is_installed, load, require_plain_pages
from .pages import ORDER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.contracts.attention import AttentionLayer, AttentionMeta, AttentionSpec
    from camshaft.contracts.kv_quant import KVLayout, KVQuant
    from camshaft.facts import DeviceFacts

    from .components import FlashInferSettings

INSTALL = "flashinfer is not installed; `pip install 'camshaft[flashinfer]'`"
LN_2 = log(2)


@dataclass(slots=True)
class PageLists:
    """Pages of a run of requests in the library's form, compressed sparse rows.

    Attributes:
        starts: int32 [B + 1] on the host, where each request's pages begin in `pages`.
        pages: int32 [total] on the device.
        last: int32 [B] on the host, keys in each request's last page.
    """

    starts: torch.Tensor
    pages: torch.Tensor
    last: torch.Tensor


Run = tuple[Any, slice]
"""A wrapper of the library, planned, and the tokens that it attends for."""


class FlashInferAttention(AttentionBackend):
    """Two wrappers of the library, one for requests with one token and one for the others.

    A plan lives in the wrappers and lasts until the next one.
    """

    graph_level = GraphLevel.NEVER  # see the module
    needs_exact_host_lengths = True
    needs_zeroed_pages = True  # the library does not say that what it masks is never multiplied

    def __init__(
        self, settings: FlashInferSettings, spec: AttentionSpec, kv_quant: KVQuant
    ) -> None:
        require_plain_pages(kv_quant, "flashinfer")
        self.settings = settings
        self.spec = spec
        self.kv_quant = kv_quant
        self.library = load("flashinfer", "flashinfer")
        self.dtype: torch.dtype = getattr(torch, spec.dtype)
        self._decode: Any = None
        self._prefill: Any = None
        self._staged: torch.cuda.Event | None = None

    @staticmethod
    def supports(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
        """The library's default kernels on NVIDIA, where it is installed."""
        reasons = common_limits(spec, facts)
        if spec.head_dim not in (64, 128, 256):
            reasons.append(f"heads have {spec.head_dim} elements, not 64, 128 or 256")
        if not is_installed("flashinfer"):
            reasons.append(INSTALL)
        return reasons

    def kv_layout(self) -> KVLayout:
        """See `AttentionBackend.kv_layout`."""
        return self.kv_quant.layout(self.spec, ORDER)  # what the library calls HND

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> list[Run]:
        """Let the library schedule the step. Lengths come from the host: nothing is waited for."""
        assert not capture, "flashinfer's schedule holds for one step"
        self._prepare(meta.context.device)
        single, requests = meta.decode_requests, len(meta.host_context)
        starts = meta.host_query_start
        runs: list[Run] = []
        if single:
            self._plan_decode(self._lists(meta, 0, single))
            runs.append((self._decode, slice(0, single)))
        if single < requests:
            queries = torch.from_numpy((starts[single:] - starts[single]).astype(np.int32))
            self._plan_prefill(queries, self._lists(meta, single, requests))
            runs.append((self._prefill, slice(int(starts[single]), int(starts[-1]))))
        if self._staged is not None:
            self._staged.record()
        return runs

    def _prepare(self, device: torch.device) -> None:
        """Make the wrappers, or wait until their host buffers are free.

        The library copies its schedule from one pinned buffer a wrapper, without an event. A step
        that is planned ahead must not overwrite what the copy before it still reads.
        """
        if self._decode is not None:
            if self._staged is not None:
                self._staged.synchronize()
            return
        # zeros, as the library asks; both wrappers use it within `run` only
        workspace = torch.zeros(self.settings.workspace_bytes, dtype=torch.uint8, device=device)
        grouped = self.spec.heads != self.spec.kv_heads
        self._decode = self.library.BatchDecodeWithPagedKVCacheWrapper(
            workspace, "HND", use_tensor_cores=grouped
        )
        self._prefill = self.library.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND")
        if device.type == "cuda":
            self._staged = torch.cuda.Event()

    def _lists(self, meta: AttentionMeta, first: int, last: int) -> PageLists:
        starts = meta.host_query_start
        lengths = meta.host_context[first:last] + np.diff(starts[first : last + 1])
        counts, at = page_places(lengths, self.spec.page_tokens, meta.page_table.shape[1])
        device = meta.page_table.device
        places = staged(at, device).to(device, non_blocking=True)
        return PageLists(
            torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)),
            torch.take(meta.page_table[first:last], places),
            torch.from_numpy(((lengths - 1) % self.spec.page_tokens + 1).astype(np.int32)),
        )

    def _plan_decode(self, lists: PageLists) -> None:
        spec = self.spec
        self._decode.plan(
            lists.starts, lists.pages, lists.last,
            spec.heads, spec.kv_heads, spec.head_dim, spec.page_tokens,
            **self._shared(),
        )  # fmt: skip

    def _plan_prefill(self, queries: torch.Tensor, lists: PageLists) -> None:
        spec = self.spec
        self._prefill.plan(
            queries, lists.starts, lists.pages, lists.last,
            spec.heads, spec.kv_heads, spec.head_dim, spec.page_tokens,
            causal=True, **self._shared(),
        )  # fmt: skip

    def _shared(self) -> dict[str, Any]:
        return {
            "window_left": self.spec.window - 1,  # it counts keys before the query; -1 is all
            "logits_soft_cap": self.spec.soft_cap,
            "q_data_type": self.dtype,
            "kv_data_type": self.dtype,
        }

    def forward(
        self,
        layer: AttentionLayer,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        kv: dict[str, torch.Tensor],
        meta: AttentionMeta,
        out: torch.Tensor,
        lse: torch.Tensor | None = None,
    ) -> None:
        """See `AttentionBackend.forward`."""
        if k is not None and v is not None:
            self.kv_quant.write(kv, meta.write_page, meta.write_offset, k, v, ORDER)
        # a plan knows the usual scale; any other goes in as a factor of the queries
        factor = layer.scale * layer.head_dim**0.5
        scale = {} if isclose(factor, 1, rel_tol=1e-6) else {"q_scale": factor}
        runs: list[Run] = meta.plan
        for wrapper, tokens in runs:
            sums = {} if lse is None else {"lse": lse[tokens], "return_lse": True}
            wrapper.run(
                q[tokens].contiguous(), (kv["k"], kv["v"]), out=out[tokens], **sums, **scale
            )
        if lse is not None:
            lse *= LN_2  # the library's logarithms are to the base 2


def page_places(
    lengths: NDArray[np.int32], page_tokens: int, width: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the pages of requests stand in their table.

    Args:
        lengths: [B] keys of each request, at least 1.
        page_tokens: P.
        width: Columns of the table.

    Returns:
        Pages of each request [B], and their places in the table seen as one row [total].
    """
    counts = -(-lengths.astype(np.int64) // page_tokens)
    request = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(len(request)) - (np.cumsum(counts) - counts)[request]
    return counts, request * width + column
