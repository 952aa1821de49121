"""The operations table: plain references, and how faster versions take their place."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .contracts.attention import AttentionLayer, Rope
    from .contracts.ops import Ops, OpsProvider
    from .facts import DeviceFacts


class OpsTable:
    """The operations of an engine, each the reference unless a provider replaced it.

    Every reference works row by row, so a token's result does not depend on its neighbours.
    """

    def __init__(self) -> None:
        self.rms_norm = rms_norm
        self.add_rms_norm = add_rms_norm
        self.rope_qk_norm = rope_qk_norm
        self.silu_mul = silu_mul
        self.gelu_mul = gelu_mul

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
    """See `Ops.rms_norm`. Computed in float32."""
    return functional.rms_norm(x.float(), weight.shape, weight.float(), eps).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.add_rms_norm`."""
    total = residual.add_(x)
    return rms_norm(total, weight, eps), total


def rotate(x: torch.Tensor, positions: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Rotate the leading dimensions of each head of x [T, heads, D]; computed in float32."""
    cos, sin = rope.cos[positions].unsqueeze(1), rope.sin[positions].unsqueeze(1)
    half = cos.shape[-1]
    first, second = x[..., :half].float(), x[..., half : 2 * half].float()
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    if 2 * half == x.shape[-1]:
        return rotated.to(x.dtype)
    return torch.cat((rotated.to(x.dtype), x[..., 2 * half :]), dim=-1)


def rope_qk_norm(
    qkv: torch.Tensor, positions: torch.Tensor, layer: AttentionLayer
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See `Ops.rope_qk_norm`."""
    tokens = qkv.shape[0]
    widths = (
        layer.heads * layer.head_dim,
        layer.kv_heads * layer.head_dim,
        layer.kv_heads * layer.value_dim,
    )
    q, k, v = qkv.split(widths, dim=-1)
    q = q.reshape(tokens, layer.heads, layer.head_dim)
    k = k.reshape(tokens, layer.kv_heads, layer.head_dim)
    v = v.reshape(tokens, layer.kv_heads, layer.value_dim)
    if layer.q_norm is not None:
        q = rms_norm(q, layer.q_norm, layer.norm_eps)
    if layer.k_norm is not None:
        k = rms_norm(k, layer.k_norm, layer.norm_eps)
    if layer.rope is not None:
        q, k = rotate(q, positions, layer.rope), rotate(k, positions, layer.rope)
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
