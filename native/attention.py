"""Attention over pages and what comes right before it; see src/attend.cpp and src/rotate.cpp."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from .calls import Arguments, Operation, caller, element_type

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

WIDEST = 1024
"""Most elements of a head."""

FORMS = {"none": 0, "int8": 1, "fp8": 2}
"""Stored forms of keys and values that are read and written in place, by name of the KVQuant."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes of a layer's heads.

    Attributes:
        queries: H.
        keys: G; divides H.
        dim: D, of queries and keys: a multiple of 16.
        value_dim: Dv: a multiple of 16.
    """

    queries: int
    keys: int
    dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class Pages:
    """A layer's keys and values in pages, heads first.

    Attributes:
        keys: [N, G, P, D] in the activations' dtype, or codes.
        values: [N, G, P, Dv].
        key_scales: float16 [N, G, P, 1] of codes, else None.
        value_scales: The same for values.
        form: One of `FORMS`.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scales: torch.Tensor | None
    value_scales: torch.Tensor | None
    form: int

    def fields(self) -> tuple[int | None, ...]:
        """Return them as the library takes them."""
        return (
            self.keys.data_ptr(),
            self.values.data_ptr(),
            _address(self.key_scales),
            _address(self.value_scales),
            self.keys.shape[2],
            self.keys.shape[1],
            self.form,
            0,
        )


_PAGES = (
    ("keys", ctypes.c_void_p),
    ("values", ctypes.c_void_p),
    ("key_scales", ctypes.c_void_p),
    ("value_scales", ctypes.c_void_p),
    ("page_tokens", ctypes.c_int32),
    ("kv_heads", ctypes.c_int32),
    ("form", ctypes.c_int32),
    ("unused", ctypes.c_int32),
)


class _RotateArguments(Arguments):
    operation = Operation.ROTATE
    _fields_ = (
        ("qkv", ctypes.c_void_p),
        ("q", ctypes.c_void_p),
        ("cos", ctypes.c_void_p),
        ("sin", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("write_page", ctypes.c_void_p),
        ("write_offset", ctypes.c_void_p),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        *_PAGES,
        ("tokens", ctypes.c_int64),
        ("qkv_stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("q_norm_type", ctypes.c_int32),
        ("k_norm_type", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("rotated", ctypes.c_int32),
        ("eps", ctypes.c_float),
    )


class _AttendArguments(Arguments):
    operation = Operation.ATTEND
    _fields_ = (
        ("q", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("sinks", ctypes.c_void_p),
        ("query_start", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        *_PAGES,
        ("tokens", ctypes.c_int64),
        ("requests", ctypes.c_int64),
        ("table_pages", ctypes.c_int64),
        ("q_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("lse_stride", ctypes.c_int64),
        ("table_stride", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("start_bytes", ctypes.c_int32),
        ("context_bytes", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("causal", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("soft_cap", ctypes.c_float),
    )


@cache
def _rotate() -> Callable[..., None]:
    return caller(_RotateArguments)


@cache
def _attend() -> Callable[..., None]:
    return caller(_AttendArguments)


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens to query and key heads.

    Attributes:
        cos: float32 [positions, rotated / 2], contiguous, or None for layers without positions.
        sin: The same.
        q_norm: [D] weight of the RMS norm of query heads, or None.
        k_norm: The same of key heads.
        eps: Of the norms.
    """

    cos: torch.Tensor | None = None
    sin: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    eps: float = 0.0


def rotate(
    qkv: torch.Tensor,
    heads: Heads,
    turn: Turn,
    positions: torch.Tensor,
    pages: Pages,
    write_page: torch.Tensor,
    write_offset: torch.Tensor,
    q: torch.Tensor,
) -> None:
    """Normalise and rotate queries and keys; put keys and values into their pages.

    Args:
        qkv: [T, (H + G) * D + G * Dv] float32 or bfloat16, rows contiguous.
        heads: Sizes.
        turn: Norms and angles.
        positions: int64 [T].
        pages: Where keys and values go.
        write_page: int64 [T].
        write_offset: int64 [T], the place in that page.
        q: [T, H, D], contiguous; the queries.
    """
    _rotate()(
        qkv.data_ptr(),
        q.data_ptr(),
        _address(turn.cos),
        _address(turn.sin),
        positions.data_ptr(),
        write_page.data_ptr(),
        write_offset.data_ptr(),
        _address(turn.q_norm),
        _address(turn.k_norm),
        *pages.fields(),
        len(qkv),
        qkv.stride(0),
        element_type(qkv),
        0 if turn.q_norm is None else element_type(turn.q_norm),
        0 if turn.k_norm is None else element_type(turn.k_norm),
        heads.queries,
        heads.dim,
        heads.value_dim,
        0 if turn.cos is None else 2 * turn.cos.shape[1],
        turn.eps,
        keep=(qkv, turn, positions, pages, write_page, write_offset, q),
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """How scores become weights.

    Attributes:
        scale: Multiplies scores.
        window: Tokens that a query sees, itself included; 0 is all.
        soft_cap: Scores become `cap * tanh(score / cap)`; 0 is off.
        sinks: float32 [H] logits that take part in the softmax, or None.
        is_causal: A query sees no later key.
    """

    scale: float
    window: int = 0
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None
    is_causal: bool = True


def attend(
    q: torch.Tensor,
    heads: Heads,
    rule: Rule,
    pages: Pages,
    query_start: torch.Tensor,
    context: torch.Tensor,
    page_table: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None = None,
) -> None:
    """Attend with all requests of a step; a token's bits do not depend on the others.

    Lengths and page tables are read when the operation runs, in replays as well.

    Args:
        q: [T, H, D] float32 or bfloat16; a token's heads are contiguous.
        heads: Sizes.
        rule: Scale, window and the like.
        pages: Keys and values, those of this step among them.
        query_start: int64 or int32 [B + 1] first token of each request.
        context: int64 or int32 [B] tokens in pages before this step.
        page_table: int32 [B, n].
        out: [T, H, Dv] of q's dtype; a token's heads are contiguous. The result.
        lse: float32 [T, H] for the log of the sum of exponentials, or None.
    """
    _attend()(
        q.data_ptr(),
        out.data_ptr(),
        _address(lse),
        _address(rule.sinks),
        query_start.data_ptr(),
        context.data_ptr(),
        page_table.data_ptr(),
        *pages.fields(),
        len(q),
        len(context),
        page_table.shape[1],
        q.stride(0),
        out.stride(0),
        0 if lse is None else lse.stride(0),
        page_table.stride(0),
        element_type(q),
        query_start.element_size(),
        context.element_size(),
        heads.queries,
        heads.dim,
        heads.value_dim,
        rule.window,
        rule.is_causal,
        rule.scale,
        rule.soft_cap,
        keep=(q, rule, pages, query_start, context, page_table, out, lse),
    )


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
