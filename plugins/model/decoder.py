"""Dense decoders from their configuration: Llama, SmolLM, Mistral, Qwen2, Qwen3 and mixtures.

Pre-norm layers with RMS norms, rotary positions, grouped-query attention and a gated feed-forward
layer. Each layer may slide (Mistral), have biases (Qwen2), normalise queries and keys (Qwen3), have
attention sinks (gpt-oss, arXiv 2508.10925) or soft caps (Gemma 2, arXiv 2408.00118).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.contracts.attention import AttentionLayer, AttentionSpec
from camshaft.contracts.model import GroupPlan, Handover, Model, ModelFacts, ModelFamily
from camshaft.errors import CheckpointError, PluginError

from .layer import DecoderLayer, FusedLayer, row_by_row
from .names import weight_names
from .rope import rope_faults, rope_tables
from .weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from camshaft.checkpoint import Checkpoint, ModelConfig
    from camshaft.contracts.attention import Rope
    from camshaft.contracts.model import Layer, ModelParts
    from camshaft.contracts.ops import Activation, Ops
    from camshaft.contracts.quant import LinearMethod, StepContext

    from .components import DecoderSettings
    from .layer import Dense

_ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3", "decoder")
# transformers' name of the activation, ours in the operations table
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu",
}


class DecoderFamily(ModelFamily):
    """One decoder for all of them; nothing depends on the architecture's name but weight names."""

    def __init__(self, settings: DecoderSettings) -> None:
        self.settings = settings

    @staticmethod
    def supports(config: ModelConfig) -> list[str]:
        """See `ModelFamily.supports`."""
        reasons = [fault.rstrip(".") for fault in config.faults()]
        if config.architecture not in _ARCHITECTURES:
            reasons.append(
                f"'{config.architecture}' is none of its architectures: {', '.join(_ARCHITECTURES)}"
            )
        if config.hidden_act not in _ACTIVATIONS:
            reasons.append(
                f"activation '{config.hidden_act}' is not implemented; "
                f"{', '.join(_ACTIVATIONS)} are"
            )
        strange = sorted(set(config.layer_types) - {"full", "sliding"})
        if strange:
            reasons.append(f"layers of type {', '.join(strange)} are not implemented")
        return reasons + rope_faults(config)

    def groups(self, config: ModelConfig, page_tokens: int, dtype: str) -> Sequence[GroupPlan]:
        """See `ModelFamily.groups`. One group for each type of layer that occurs."""
        return [
            GroupPlan(
                tuple(at for at, one in enumerate(config.layer_types) if one == kind),
                AttentionSpec(
                    heads=config.heads,
                    kv_heads=config.kv_heads,
                    head_dim=config.head_dim,
                    value_dim=config.head_dim,
                    dtype=dtype,
                    page_tokens=page_tokens,
                    window=_window(config, kind),
                    sinks=config.attention_sinks,
                    soft_cap=config.attention_softcap or 0.0,
                    max_context=config.context,
                ),
            )
            for kind in _kinds(config)
        ]

    def names(self, config: ModelConfig, layout: str) -> Mapping[str, str]:
        """See `ModelFamily.names`."""
        return weight_names(config, layout)

    def build(self, checkpoint: Checkpoint, parts: ModelParts) -> Model:
        """See `ModelFamily.build`."""
        config = checkpoint.config
        reasons = self.supports(config)
        if reasons:
            raise CheckpointError(f"{checkpoint.source}: {'; '.join(reasons)}.")
        if parts.ranks != 1:
            raise PluginError(f"model 'decoder' runs on one rank; {parts.ranks} are asked for.")
        weights = Weights(checkpoint, parts)
        model = Decoder(checkpoint, parts, weights, self.settings)
        weights.warn_of_unused()
        return model


class Decoder(Model):
    """A range of layers, with the embedding before the first and the head behind the last."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        parts: ModelParts,
        weights: Weights,
        settings: DecoderSettings,
    ) -> None:
        config = checkpoint.config
        first, last = parts.layers
        self._ops: Ops = parts.ops
        self._norm_eps = config.norm_eps
        self._soft_cap = config.logit_softcap
        self._by_rows = parts.deterministic
        self._is_wide = settings.residual == "float32" and parts.dtype != "float32"
        self._tanh = _rows_alone(torch.tanh, parts)
        self._embedding: LinearMethod | None = None
        self._head: LinearMethod | None = None
        self._norm: torch.Tensor | None = None
        self._load_ends(config, weights, is_first=first == 0, is_last=last == config.layers)
        self._dense_head = _dense(self._head)
        rope = rope_tables(config, parts.max_context, parts.device)
        self.layers = [_layer(at, config, parts, weights, rope) for at in range(first, last)]
        self.facts = ModelFacts(
            name=checkpoint.source,
            layers=last - first,
            hidden=config.hidden,
            vocab=config.vocab,
            parameters=weights.touched,
            weight_bytes=weights.resident_bytes + rope.cos.nbytes + rope.sin.nbytes,
            max_context=parts.max_context,
        )

    def _load_ends(
        self, config: ModelConfig, weights: Weights, *, is_first: bool, is_last: bool
    ) -> None:
        embed, head = [("embed", config.vocab)], [("head", config.vocab)]
        if is_last:
            self._norm = weights.vector("norm.weight", config.hidden)
        if config.tie_embeddings and is_first and is_last:
            self._embedding = self._head = weights.linear(
                "embed", embed, config.hidden, role="tied"
            )
            return
        if is_first:
            self._embedding = weights.linear("embed", embed, config.hidden, role="embedding")
        if is_last and config.tie_embeddings:
            self._head = weights.linear("embed", embed, config.hidden, role="head")
        elif is_last:
            self._head = weights.linear("head", head, config.hidden, role="head")

    def embed(self, tokens: torch.Tensor, step: StepContext) -> Handover:
        """See `Model.embed`."""
        assert self._embedding is not None, "this stage has no embedding"
        hidden = self._embedding.lookup(tokens)
        # a sum keeps the precision that it begins with
        wide = torch.zeros_like(hidden, dtype=torch.float32) if self._is_wide else None
        return Handover(hidden, wide)

    def norm(self, handover: Handover) -> torch.Tensor:
        """See `Model.norm`."""
        assert self._norm is not None, "this stage has no head"
        hidden, residual = handover
        if residual is None:
            return self._ops.rms_norm(hidden, self._norm, self._norm_eps)
        return self._ops.add_rms_norm(hidden, residual, self._norm, self._norm_eps)[0]

    def logits(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `Model.logits`."""
        assert self._head is not None, "this stage has no head"
        if self._dense_head is None:
            logits = self._head.apply_wide(hidden, step)
        else:
            # not rounded between: close logits of halves would tie
            multiply = self._ops.row_linear if self._by_rows else self._ops.linear
            logits = multiply(hidden, *self._dense_head, torch.float32)
        if self._soft_cap is None:
            return logits
        return self._tanh(logits / self._soft_cap) * self._soft_cap


def _dense(linear: LinearMethod | None) -> Dense | None:
    return None if linear is None else linear.dense()


def _rows_alone(
    function: Callable[[torch.Tensor], torch.Tensor], parts: ModelParts
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function of elements whose bits do not depend on the number of rows, if needed."""
    depends = parts.deterministic and torch.device(parts.device).type == "cpu"
    return row_by_row(function) if depends else function


def _layer(
    index: int, config: ModelConfig, parts: ModelParts, weights: Weights, rope: Rope
) -> Layer:
    name = f"layers.{index}"
    activation = _ACTIVATIONS[config.hidden_act]
    activate = parts.ops.silu_mul if activation == "silu" else parts.ops.gelu_mul
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = [(f"{name}.q", queries), (f"{name}.k", keys), (f"{name}.v", keys)]
    gate_up = [(f"{name}.gate", config.intermediate), (f"{name}.up", config.intermediate)]
    hidden = config.hidden
    layer = DecoderLayer(
        attention=_attention(index, config, weights, rope),
        ops=parts.ops,
        activate=_rows_alone(activate, parts),
        norm_eps=config.norm_eps,
        attention_norm=weights.vector(f"{name}.attention_norm.weight", hidden),
        qkv=weights.linear(f"{name}.qkv", qkv, hidden, bias=config.attention_bias),
        out=weights.linear(
            f"{name}.out", [(f"{name}.out", hidden)], queries, bias=config.attention_out_bias
        ),
        mlp_norm=weights.vector(f"{name}.mlp_norm.weight", hidden),
        gate_up=weights.linear(f"{name}.gate_up", gate_up, hidden, bias=config.mlp_bias),
        down=weights.linear(
            f"{name}.down", [(f"{name}.down", hidden)], config.intermediate, bias=config.mlp_bias
        ),
    )
    if parts.deterministic:
        return layer.by_rows()
    return FusedLayer.of(layer, activation) or layer


def _attention(index: int, config: ModelConfig, weights: Weights, rope: Rope) -> AttentionLayer:
    name, kind = f"layers.{index}", config.layer_types[index]
    q_norm = k_norm = sinks = None
    if config.qk_norm:
        q_norm = weights.vector(f"{name}.q_norm.weight", config.head_dim)
        k_norm = weights.vector(f"{name}.k_norm.weight", config.head_dim)
    if config.attention_sinks:
        sinks = weights.vector(f"{name}.sinks.weight", config.heads, torch.float32)
    return AttentionLayer(
        index=index,
        group=_kinds(config).index(kind),
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        value_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        window=_window(config, kind),
        soft_cap=config.attention_softcap or 0.0,
        sinks=sinks,
        rope=rope,
        q_norm=q_norm,
        k_norm=k_norm,
        norm_eps=config.norm_eps,
    )


def _kinds(config: ModelConfig) -> list[str]:
    """Return the types of layers that occur, `full` first."""
    return sorted(set(config.layer_types))


def _window(config: ModelConfig, kind: str) -> int:
    return (config.sliding_window or 0) if kind == "sliding" else 0
