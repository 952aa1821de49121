"""GGUF metadata to `ModelConfig`.

Keys as in the GGUF specification. What a file does not say in metadata it says through its tensors:
a missing `output.weight` ties the head, a bias tensor means biases, `rope_freqs.weight` stretches
the positions. Every key of the architecture must be known: one that changes the model and is passed
over would give a model that runs and talks nonsense.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.errors import CheckpointError, did_you_mean

from .config import ModelConfig, Rope, RopeKind
from .fields import Fields

if TYPE_CHECKING:
    from .gguf import GGUFFile

_QK_NORM = {"llama": False, "qwen2": False, "qwen3": True}
"""The architectures, and whether they normalise queries and keys."""

_KNOWN_KEYS = frozenset(
    {
        *("block_count", "context_length", "embedding_length", "feed_forward_length"),
        *("vocab_size", "attention.head_count", "attention.head_count_kv"),
        *("attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon"),
        *("rope.dimension_count", "rope.freq_base", "rope.scaling.type", "rope.scaling.factor"),
        *("rope.scaling.original_context_length", "rope.scaling.finetuned", "rope.scale_linear"),
        *("rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"),
    }
)
# Keys that say that something usual is so; any other value is refused.
_USUAL: dict[str, object] = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "use_parallel_residual": False,
    "tensor_data_layout": "Meta AI original pth",
}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_gguf_config(file: GGUFFile) -> ModelConfig:
    """Build a `ModelConfig` from the metadata and the tensor table of a file.

    Raises:
        CheckpointError: An unknown architecture, rope or key, or a missing or impossible value.
    """
    name = Fields(file.metadata, str(file.path)).text("general.architecture")
    if name not in _QK_NORM:
        raise CheckpointError(
            f"{file.path}: GGUF architecture '{name}' is not supported"
            f"{did_you_mean(name, _QK_NORM)}; {', '.join(_QK_NORM)} are."
        )
    fields = Fields(file.metadata, str(file.path), f"{name}.")
    _refuse_unknown_keys(name, fields)
    model = _model(name, file, fields)
    faults = model.faults()
    if faults:
        raise CheckpointError("\n".join(f"{file.path}: {fault}" for fault in faults))
    return model


def _refuse_unknown_keys(name: str, fields: Fields) -> None:
    for key, value in fields.values.items():
        inner = key.removeprefix(f"{name}.")
        if inner == key or inner in _KNOWN_KEYS:
            continue
        if inner not in _USUAL:
            raise CheckpointError(f"{fields.where}: {key} = {value!r} is not supported.")
        if value != _USUAL[inner]:
            raise CheckpointError(
                f"{fields.where}: {key} = {value!r} is not supported, only {_USUAL[inner]!r}."
            )


def _model(name: str, file: GGUFFile, fields: Fields) -> ModelConfig:
    special = Fields(file.metadata, str(file.path), "tokenizer.ggml.")
    hidden, heads = fields.size("embedding_length"), fields.size("attention.head_count")
    head_dim = fields.size("attention.key_length", hidden // heads)
    if fields.size("attention.value_length", head_dim) != head_dim:
        raise fields.fault("attention.value_length", f"must be {head_dim}, the size of keys")
    eos = [token for key in _EOS_KEYS if (token := special.token_id(key)) is not None]
    return ModelConfig(
        architecture=name,
        hidden=hidden,
        intermediate=fields.size("feed_forward_length"),
        layers=fields.size("block_count"),
        heads=heads,
        kv_heads=fields.size("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=_vocab(file, fields),
        context=fields.size("context_length"),
        rope=_rope(file, fields, head_dim),
        norm_eps=_shortest(fields.number("attention.layer_norm_rms_epsilon")),
        tie_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm=_QK_NORM[name],
        eos_ids=tuple(dict.fromkeys(eos)),
        bos_id=special.token_id("bos_token_id"),
        pad_id=special.token_id("padding_token_id"),
    )


def _vocab(file: GGUFFile, fields: Fields) -> int:
    """Rows of the embedding, which the table of tokens and the stated size must match."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.path}: there is no matrix 'token_embd.weight'.")
    rows = embedding.shape[0]
    stated = fields.size("vocab_size", rows)
    if stated != rows:
        raise fields.fault("vocab_size", f"is {stated}, but 'token_embd.weight' has {rows} rows")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != rows:
        raise CheckpointError(
            f"{file.path}: tokenizer.ggml.tokens has {len(tokens)} entries, but "
            f"'token_embd.weight' has {rows} rows."
        )
    return rows


def _rope(file: GGUFFile, fields: Fields, head_dim: int) -> Rope:
    kind = _rope_kind(fields)
    divisors: tuple[float, ...] = ()
    frequencies = file.tensors.get("rope_freqs.weight")
    if frequencies is not None:
        if kind != "default" or frequencies.format != "f32":
            raise CheckpointError(
                f"{file.path}: tensor 'rope_freqs.weight' ({frequencies.format}) beside rope "
                f"scaling '{kind}' is not supported; f32 without scaling is."
            )
        kind, divisors = "divisors", tuple(frequencies.data.view(np.float32).tolist())
    return Rope(
        theta=fields.number("rope.freq_base", 10000.0),
        kind=kind,
        rotary_share=fields.size("rope.dimension_count", head_dim) / head_dim,
        factor=_rope_factor(fields, kind),
        original_context=fields.size_or_none("rope.scaling.original_context_length"),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=fields.number_or_none("rope.scaling.attn_factor"),
        divisors=divisors,
    )


def _rope_kind(fields: Fields) -> RopeKind:
    word = fields.text("rope.scaling.type", "none")
    if fields.raw("rope.scale_linear") not in (None, 1, 1.0):
        word = "linear"
    kinds: dict[str, RopeKind] = {"none": "default", "linear": "linear", "yarn": "yarn"}
    if word not in kinds:
        raise fields.fault(
            "rope.scaling.type", f"'{word}' is not supported; {', '.join(kinds)} are"
        )
    return kinds[word]


def _rope_factor(fields: Fields, kind: RopeKind) -> float | None:
    if kind in ("default", "divisors"):
        return None
    older = fields.number_or_none("rope.scale_linear")
    return fields.number("rope.scaling.factor", older)


def _shortest(value: float) -> float:
    """Return the shortest decimal that is the same float32: 1e-5 rather than 9.99999974e-06."""
    return float(str(np.float32(value)))
