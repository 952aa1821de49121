"""What a model is: sizes, positions, special ids. Built from a checkpoint, or written by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

LayerType = Literal["full", "sliding"]
RopeKind = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3", "divisors"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions (Su et al., arXiv 2104.09864) and how they were stretched.

    Attributes:
        theta: Base of the frequencies.
        kind: The stretching, by transformers' `rope_type`; `divisors` is the `rope_freqs.weight`
            of GGUF files. A model must refuse a kind that it does not implement.
        rotary_share: Share of the head size that is rotated, from its start.
        factor: How many times longer the context became, or None where the kind has none.
        original_context: Context before stretching, or None.
        low_freq_factor: Of `llama3`.
        high_freq_factor: Of `llama3`.
        beta_fast: Of `yarn` (Peng et al., arXiv 2309.00071).
        beta_slow: Of `yarn`.
        attention_factor: Multiplies sines and cosines (`yarn`, `longrope`); None derives it.
        mscale: Of `yarn` as DeepSeek writes it, or None.
        mscale_all_dim: Likewise.
        truncate: Of `yarn`: whether the bounds of the ramp are rounded to whole dimensions.
        short_factors: Of `longrope`: divisors of the frequencies up to `original_context`.
        long_factors: Of `longrope`: divisors beyond it.
        divisors: Of `divisors`: one for each frequency.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    rotary_share: float = 1.0
    factor: float | None = None
    original_context: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    divisors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the model's authors recommend for sampling; None where they say nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer, in one vocabulary whatever file it comes from.

    Attributes:
        architecture: Hugging Face's `model_type`: `llama`, `mistral`, `qwen2`, `qwen3`; `decoder`
            is a model without a name of its own that sets every field itself. Of others, which
            the transformers library knows, only sizes and special ids stand here.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward layer.
        layers: Number of layers.
        heads: Query heads.
        kv_heads: Key and value heads; divides `heads`.
        head_dim: Elements of a head; `heads * head_dim` may differ from `hidden`.
        vocab: Rows of the embedding and the output head; may exceed the tokenizer's.
        context: Longest sequence in tokens that the model was made for.
        rope: Rotary positions.
        norm_eps: Added to the mean square in RMS norms.
        tie_embeddings: The output head is the embedding.
        attention_bias: Query, key and value projections have biases.
        attention_out_bias: The output projection of attention has one.
        mlp_bias: The feed-forward projections have biases.
        qk_norm: Queries and keys are RMS-normalised for each head, before rope.
        layer_types: One for each layer.
        sliding_window: A query in a `sliding` layer sees the last so many keys, itself included;
            None when no layer slides.
        logit_softcap: Final logits become `cap * tanh(logits / cap)`; None is off.
        attention_softcap: The same on attention scores, before the mask.
        attention_sinks: Every query head has a learned extra logit in its softmax.
        hidden_act: Activation of the feed-forward layer, transformers' name.
        dtype: That the checkpoint says it is in, or None.
        eos_ids: Ids that end a generation.
        bos_id: Id that starts a text, or None.
        pad_id: Id for padding, or None.
        generation: Recommended sampling.
        stated: What `config.json` holds, for families that read it themselves; None where the
            model has none.
    """

    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope: Rope = field(default_factory=Rope)
    norm_eps: float = 1e-6
    tie_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layer_types: tuple[LayerType, ...] = ()
    sliding_window: int | None = None
    logit_softcap: float | None = None
    attention_softcap: float | None = None
    attention_sinks: bool = False
    hidden_act: str = "silu"
    dtype: str | None = None
    eos_ids: tuple[int, ...] = ()
    bos_id: int | None = None
    pad_id: int | None = None
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    stated: Mapping[str, Any] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.layer_types:
            object.__setattr__(self, "layer_types", ("full",) * self.layers)

    def faults(self) -> list[str]:
        """Return what cannot be right about it, each a sentence without its place."""
        found = []
        if self.head_dim % 2:
            found.append(f"a head of {self.head_dim} elements has no pairs to rotate.")
        if self.heads % self.kv_heads:
            found.append(f"{self.heads} query heads cannot share {self.kv_heads} key heads.")
        if len(self.layer_types) != self.layers:
            found.append(f"{len(self.layer_types)} layer types for {self.layers} layers.")
        if ("sliding" in self.layer_types) != (self.sliding_window is not None):
            found.append("sliding layers and a sliding window need each other.")
        special = [*self.eos_ids, *(i for i in (self.bos_id, self.pad_id) if i is not None)]
        found.extend(
            f"special id {token} is outside the vocabulary of {self.vocab}."
            for token in special
            if not 0 <= token < self.vocab
        )
        return found
