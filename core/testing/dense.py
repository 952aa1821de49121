"""A model run over one whole sequence, with attention as it is defined and no pages at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..contracts.model import WholeModel
from ..contracts.quant import StepContext

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..contracts.attention import AttentionLayer
    from ..contracts.model import Handover, Layer, Model
    from ..contracts.ops import Ops


@torch.inference_mode()
def dense_logits(model: Model, ops: Ops, tokens: Sequence[int]) -> torch.Tensor:
    """Return the float32 logits [T, V] of every position of a sequence.

    Args:
        model: All layers.
        ops: The operations table.
        tokens: Ids of the sequence.
    """
    return model.logits(dense_states(model, ops, tokens), StepContext(tokens=len(tokens)))


@torch.inference_mode()
def dense_states(
    model: Model, ops: Ops, tokens: Sequence[int], *, causal: bool = True
) -> torch.Tensor:
    """Return the hidden states [T, C] that the head would read; as `dense_logits`."""
    count = len(tokens)
    ids, positions = torch.tensor(tokens), torch.arange(count)
    step = StepContext(tokens=count, positions=positions)
    if isinstance(model, WholeModel):

        def attend(layer: AttentionLayer, qkv: torch.Tensor) -> torch.Tensor:
            return _attended(layer, ops, qkv, positions, causal=causal)

        return model.norm(model.run(ids, positions, attend, step))
    return model.norm(run_layers(model.layers, ops, model.embed(ids, step), causal=causal))


def run_layers(
    layers: Sequence[Layer], ops: Ops, handover: Handover, *, causal: bool = True
) -> Handover:
    """Run a range of layers over one sequence from its start."""
    count = len(handover.hidden)
    step, positions = StepContext(tokens=count), torch.arange(count)
    for layer in layers:
        qkv, carried = layer.before(handover, step)
        attended = _attended(layer.attention, ops, qkv, positions, causal=causal)
        handover = layer.after(attended, carried, step)
    return handover


def _attended(
    layer: AttentionLayer, ops: Ops, qkv: torch.Tensor, positions: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    q, k, v = ops.rope_qk_norm(qkv, positions, layer)
    return dense_attention(layer, q, k, v, causal=causal).to(qkv.dtype)


def dense_attention(
    layer: AttentionLayer,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = True,
) -> torch.Tensor:
    """Attend over one sequence.

    Args:
        layer: Scale, window, soft cap and sinks.
        q: [T, H, D], rotated.
        k: [T, G, D], rotated.
        v: [T, G, Dv].
        causal: See `AttentionSpec`.

    Returns:
        float32 [T, H * Dv].
    """
    shared = layer.heads // layer.kv_heads
    keys = k.float().repeat_interleave(shared, dim=1)
    values = v.float().repeat_interleave(shared, dim=1)
    scores = torch.einsum("thd,shd->hts", q.float(), keys) * layer.scale
    if layer.soft_cap:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    place = torch.arange(len(q))
    distance = place[:, None] - place[None, :]
    hidden = (distance < 0) & causal
    if layer.window:
        hidden |= distance >= layer.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if layer.sinks is not None:
        sinks = layer.sinks.float()[:, None, None].expand(-1, len(q), 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(q)]
    return torch.einsum("hts,shd->thd", weights, values).reshape(len(q), -1)
