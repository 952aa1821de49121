"""Encoders from their configuration: BERT and what was distilled from it, such as MiniLM.

Source: Devlin et al., "BERT", NAACL 2019 (arXiv 1810.04805); layers as in Vaswani et al.,
"Attention Is All You Need", NeurIPS 2017, with the norm behind each sum. Every token attends to
all of its text, so a text is computed in one step and its keys serve nobody else. There is no head:
what the last layer leaves is pooled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch
from torch.nn import functional

from camshaft.contracts.attention import AttentionLayer, AttentionSpec
from camshaft.contracts.model import GroupPlan, Handover, Layer, Model, ModelFacts, ModelFamily
from camshaft.errors import CheckpointError, PluginError

from .encoder_names import ENCODER_IGNORED, encoder_names, is_wrapped
from .layer import RowLinear, row_by_row
from .weights import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from camshaft.checkpoint import Checkpoint, ModelConfig
    from camshaft.component import Settings
    from camshaft.contracts.model import ModelParts
    from camshaft.contracts.quant import LinearMethod, StepContext

_ARCHITECTURES = ("bert",)


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return functional.gelu(x, approximate="tanh")


# transformers' names
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": functional.relu,
}


class EncoderFamily(ModelFamily):
    """One encoder for all of them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @staticmethod
    def supports(config: ModelConfig) -> list[str]:
        """See `ModelFamily.supports`."""
        reasons = []
        if config.architecture not in _ARCHITECTURES:
            reasons.append(
                f"'{config.architecture}' is none of its architectures: {', '.join(_ARCHITECTURES)}"
            )
        if config.hidden_act not in _ACTIVATIONS:
            reasons.append(
                f"activation '{config.hidden_act}' is not implemented; "
                f"{', '.join(_ACTIVATIONS)} are"
            )
        return reasons

    def groups(self, config: ModelConfig, page_tokens: int, dtype: str) -> Sequence[GroupPlan]:
        """See `ModelFamily.groups`."""
        spec = AttentionSpec(
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            value_dim=config.head_dim,
            dtype=dtype,
            page_tokens=page_tokens,
            causal=False,
            max_context=config.context,
        )
        return [GroupPlan(tuple(range(config.layers)), spec)]

    def names(self, config: ModelConfig, layout: str) -> Mapping[str, str]:
        """See `ModelFamily.names`."""
        return encoder_names(config)

    def build(self, checkpoint: Checkpoint, parts: ModelParts) -> Model:
        """See `ModelFamily.build`."""
        reasons = self.supports(checkpoint.config)
        if reasons:
            raise CheckpointError(f"{checkpoint.source}: {'; '.join(reasons)}.")
        if parts.ranks != 1:
            raise PluginError(f"model 'encoder' runs on one rank; {parts.ranks} are asked for.")
        prefix = "bert." if is_wrapped(checkpoint.tensors or ()) else ""
        names = encoder_names(checkpoint.config, prefix)
        weights = Weights(checkpoint, parts, names, ENCODER_IGNORED)
        model = Encoder(checkpoint, parts, weights)
        weights.warn_of_unused()
        return model


@dataclass(frozen=True, slots=True, eq=False)
class LayerNorm:
    """A norm that centres, too."""

    weight: torch.Tensor
    bias: torch.Tensor
    eps: float

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x [T, C], normalised."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(slots=True, eq=False)
class EncoderLayer(Layer):
    """Attention, sum and norm; feed-forward, sum and norm.

    Attributes:
        attention: What the executor attends with.
        activate: Of the feed-forward layer.
        qkv: [C] to queries, keys and values side by side.
        out: [H * D] to [C].
        attention_norm: Behind the first sum.
        up: [C] to [I].
        down: [I] to [C].
        mlp_norm: Behind the second sum.
    """

    attention: AttentionLayer
    activate: Callable[[torch.Tensor], torch.Tensor]
    qkv: LinearMethod | RowLinear
    out: LinearMethod | RowLinear
    attention_norm: LayerNorm
    up: LinearMethod | RowLinear
    down: LinearMethod | RowLinear
    mlp_norm: LayerNorm

    def before(self, handover: Handover, step: StepContext) -> tuple[torch.Tensor, Handover]:
        """See `Layer.before`."""
        return self.qkv.apply(handover.hidden, step), handover

    def after(self, attended: torch.Tensor, carried: Handover, step: StepContext) -> Handover:
        """See `Layer.after`."""
        hidden = self.attention_norm(self.out.apply(attended, step) + carried.hidden)
        inner = self.activate(self.up.apply(hidden, step))
        return Handover(self.mlp_norm(self.down.apply(inner, step) + hidden), None)


@dataclass(frozen=True, slots=True, eq=False)
class _Embeddings:
    """What a token and its position begin as.

    Attributes:
        tokens: Table [V, C].
        positions: Table [context, C].
        types: Table of which part of a pair a token is in. Here is one text: the first row.
        first: int64 [1], 0.
        norm: Of the sum.
    """

    tokens: LinearMethod
    positions: LinearMethod
    types: LinearMethod
    first: torch.Tensor
    norm: LayerNorm

    @classmethod
    def of(cls, config: ModelConfig, parts: ModelParts, weights: Weights) -> _Embeddings:
        """Load them."""
        types = (config.stated or {}).get("type_vocab_size", 2)
        return cls(
            tokens=_table(weights, "embed", config.vocab, config.hidden),
            positions=_table(weights, "positions", config.context, config.hidden),
            types=_table(weights, "types", types, config.hidden),
            first=torch.zeros(1, dtype=torch.int64, device=parts.device),
            norm=_norm(weights, "embed_norm", config),
        )

    def lookup(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return [T, C] of int64 ids and positions [T]."""
        hidden = self.tokens.lookup(tokens) + self.types.lookup(self.first)
        return self.norm(hidden + self.positions.lookup(positions))


class Encoder(Model):
    """A range of layers, with the embeddings and their norm before the first."""

    def __init__(self, checkpoint: Checkpoint, parts: ModelParts, weights: Weights) -> None:
        config, (first, last) = checkpoint.config, parts.layers
        self._embeddings = None if first else _Embeddings.of(config, parts, weights)
        self.layers = [_layer(at, config, parts, weights) for at in range(first, last)]
        self.facts = ModelFacts(
            name=checkpoint.source,
            layers=last - first,
            hidden=config.hidden,
            vocab=config.vocab,
            parameters=weights.touched,
            weight_bytes=weights.resident_bytes,
            max_context=parts.max_context,
        )

    def embed(self, tokens: torch.Tensor, step: StepContext) -> Handover:
        """See `Model.embed`."""
        assert self._embeddings is not None, "this stage has no embedding"
        assert step.positions is not None, "an encoder embeds positions"
        return Handover(self._embeddings.lookup(tokens, step.positions), None)

    def norm(self, handover: Handover) -> torch.Tensor:
        """Return the hidden states as they are: the last layer ends with its norm."""
        return handover.hidden

    def logits(self, hidden: torch.Tensor, step: StepContext) -> NoReturn:
        """Refuse.

        Raises:
            PluginError: Always.
        """
        raise PluginError("an encoder has no head; the engine asks it for vectors alone.")


def _layer(index: int, config: ModelConfig, parts: ModelParts, weights: Weights) -> EncoderLayer:
    name = f"layers.{index}"

    def linear(whole: str, *outputs: tuple[str, int], inputs: int) -> LinearMethod | RowLinear:
        """Return a linear, of parts with their rows."""
        named = [(f"{name}.{part}", rows) for part, rows in outputs]
        method = weights.linear(f"{name}.{whole}", named, inputs, bias=True)
        dense = method.dense() if parts.deterministic else None
        return method if dense is None else RowLinear(parts.ops, *dense)

    hidden, inner = config.hidden, config.intermediate
    qkv = [(part, hidden) for part in ("q", "k", "v")]
    activate = _ACTIVATIONS[config.hidden_act]
    alone = parts.deterministic and torch.device(parts.device).type == "cpu"
    return EncoderLayer(
        attention=AttentionLayer(
            index=index,
            group=0,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            value_dim=config.head_dim,
            scale=config.head_dim**-0.5,
        ),
        activate=row_by_row(activate) if alone else activate,
        qkv=linear("qkv", *qkv, inputs=hidden),
        out=linear("out", ("out", hidden), inputs=hidden),
        attention_norm=_norm(weights, f"{name}.attention_norm", config),
        up=linear("up", ("up", inner), inputs=hidden),
        down=linear("down", ("down", hidden), inputs=inner),
        mlp_norm=_norm(weights, f"{name}.mlp_norm", config),
    )


def _table(weights: Weights, name: str, rows: int, width: int) -> LinearMethod:
    return weights.linear(name, [(name, rows)], width, role="embedding")


def _norm(weights: Weights, name: str, config: ModelConfig) -> LayerNorm:
    weight, bias = (weights.vector(f"{name}.{part}", config.hidden) for part in ("weight", "bias"))
    return LayerNorm(weight, bias, config.norm_eps)
