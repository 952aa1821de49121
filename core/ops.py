"""The operations table: plain references, and how faster versions take their place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .contracts.attention import AttentionLayer
    from .contracts.ops import Activation, Ops, OpsProvider
    from .facts import DeviceFacts

ROW_TILE = 8
"""Rows of every product whose rows must not depend on each other."""


class OpsTable:
    """The operations of an engine, each the reference unless a provider replaced it.

    Every reference but `linear` works row by row, so a token's result does not depend on its
    neighbours. The fused ones call what the table holds then, replaced or not.
    """

    def __init__(self) -> None:
        self.rms_norm = rms_norm
        self.add_rms_norm = add_rms_norm
        self.rope_qk_norm = rope_qk_norm
        self.silu_mul = silu_mul
        self.gelu_mul = gelu_mul
        self.linear = linear
        self.row_linear = row_linear
        self.norm_linear = self._norm_linear
        self.norm_gated_linear = self._norm_gated_linear

    def _norm_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return self.linear(self.rms_norm(x, norm, eps), weight, bias), x
        normed, total = self.add_rms_norm(x, residual, norm, eps)
        return self.linear(normed, weight, bias), total

    def _norm_gated_linear(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        norm: torch.Tensor,
        eps: float,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        activation: Activation,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gate_up, total = self.norm_linear(x, residual, norm, eps, weight, bias)
        activate = self.silu_mul if activation == "silu" else self.gelu_mul
        return activate(gate_up), total

    def replace(self, name: str, function: Callable[..., object]) -> None:
        """Put another version in the table.

        Raises:
            AttributeError: No operation is called `name`.
        """
        if name not in self.__dict__:
            raise AttributeError(f"no operation is called '{name}'; there are {sorted(vars(self))}")
        setattr(self, name, function)


def compose_ops(providers: Iterable[OpsProvider], facts: DeviceFacts, dtype: str) -> Ops:
    """Return the table with each provider's supported versions, a later provider winning."""
    table = OpsTable()
    for provider in providers:
        for one in provider.implementations():
            if not one.supports(facts, dtype):
                table.replace(one.name, one.function)
    return table


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `Ops.rms_norm`. Computed in float32, rounded once."""
    if weight.dtype is x.dtype:  # torch computes it in float32 then
        return functional.rms_norm(x, weight.shape, weight, eps)
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.add_rms_norm`."""
    total = residual.add_(x)
    return rms_norm(total, weight, eps).to(x.dtype), total


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """See `Ops.linear`. Torch spares the rounding on CUDA alone, and without a bias."""
    if dtype is None or dtype is x.dtype:
        return functional.linear(x, weight, bias)
    if x.device.type == "cuda" and bias is None:
        return torch.mm(x, weight.t(), out_dtype=dtype)
    return functional.linear(x, weight, bias).to(dtype)


def row_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """See `Ops.row_linear`. Multiplies in tiles of `ROW_TILE` rows, the last filled up with zeros.

    A matrix product picks its kernel by the number of rows, so a row's last bits depend on how many
    others come along. With the shape held fixed they do not, nor on the row's place in the tile.
    """
    out = x.new_empty((len(x), len(weight)), dtype=dtype)
    for start in range(0, len(x), ROW_TILE):
        tile = x[start : start + ROW_TILE]
        count = len(tile)
        if count < ROW_TILE:
            tile = functional.pad(tile, (0, 0, 0, ROW_TILE - count))
        out[start : start + count] = linear(tile, weight, bias, dtype)[:count]
    return out


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate the leading dimensions of each head; computed in float32.

    Args:
        x: [T, heads, D].
        cos: float32 [T, 1, R] of each rotated dimension, R at most D.
        sin: The same, negative in the first half.
    """
    width = cos.shape[-1]
    turned = x if width == x.shape[-1] else x[..., :width]
    first, second = turned.float().chunk(2, dim=-1)
    swapped = torch.cat((second, first), dim=-1)
    rotated = swapped.mul_(sin).add_(turned * cos).to(x.dtype)
    return rotated if turned is x else torch.cat((rotated, x[..., width:]), dim=-1)


def rope_qk_norm(
    qkv: torch.Tensor, positions: torch.Tensor, layer: AttentionLayer
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `Ops.rope_qk_norm`. Queries and keys lie side by side and are rotated as one."""
    heads, kv_heads = layer.heads, layer.kv_heads
    cut = (heads + kv_heads) * layer.head_dim
    qk = qkv[:, :cut].view(len(qkv), heads + kv_heads, layer.head_dim)
    v = qkv[:, cut:].view(len(qkv), kv_heads, layer.value_dim)
    if layer.q_norm is not None or layer.k_norm is not None:
        q, k = qk.split((heads, kv_heads), dim=1)
        q = q if layer.q_norm is None else rms_norm(q, layer.q_norm, layer.norm_eps)
        k = k if layer.k_norm is None else rms_norm(k, layer.k_norm, layer.norm_eps)
        qk = torch.cat((q, k), dim=1)
    if layer.rope is not None:
        qk = rotate(qk, *layer.rope.at(positions))
    q, k = qk.split((heads, kv_heads), dim=1)
    return q, k, v


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `Ops.silu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    if gate.dtype is torch.float32:
        # torch's silu takes another exp where a thread's share ends inside a row, so that bits
        # depend on T (seen with 5 threads at I = 1536); exp alone does not
        return torch.exp(-gate).add_(1).reciprocal_().mul_(gate).mul_(up)
    return functional.silu(gate) * up


def gelu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """See `Ops.gelu_mul`."""
    gate, up = gate_up.chunk(2, dim=-1)
    if gate.dtype is torch.float32:  # as in silu_mul
        inner = (gate + 0.044715 * gate**3).mul_(math.sqrt(2 / math.pi))
        return inner.tanh_().add_(1).mul_(0.5).mul_(gate).mul_(up)
    return functional.gelu(gate, approximate="tanh") * up
