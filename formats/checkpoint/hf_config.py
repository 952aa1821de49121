"""`config.json` of Hugging Face models to `ModelConfig`.

Field names and defaults are those of transformers 5 (`configuration_llama.py` and its siblings) and
of transformers 4 where files still carry them (`rope_theta`, `rope_scaling`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from camshaft.errors import CheckpointError, did_you_mean

from .config import GenerationDefaults, LayerType, ModelConfig
from .encoder_config import ENCODERS, read_encoder_config
from .fields import Fields
from .hf_rope import read_rope
from .library_config import read_library_config

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Architecture:
    """What `config.json` leaves unsaid about one `model_type`.

    Attributes:
        context: Default of `max_position_embeddings`.
        kv_heads: Default of `num_key_value_heads`; None is as many as query heads.
        head_dim: Default of `head_dim`; None divides `hidden_size` by the heads.
        attention_bias: `config`: the field of this name decides, also for the output projection;
            `qkv`: always on query, key and value only; `none`: never.
        mlp_bias: Whether the field `mlp_bias` counts.
        qk_norm: Queries and keys are normalised.
        window: Which layers slide: `none`; `all` when there is a window; `upper`: those from
            `max_window_layers` on, when `use_sliding_window`.
    """

    context: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    attention_bias: Literal["config", "qkv", "none"] = "none"
    mlp_bias: bool = False
    qk_norm: bool = False
    window: Literal["none", "all", "upper"] = "none"


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(context=2048, attention_bias="config", mlp_bias=True),
    "mistral": Architecture(context=131072, kv_heads=8, window="all"),
    "qwen2": Architecture(context=32768, kv_heads=32, attention_bias="qkv", window="upper"),
    "qwen3": Architecture(
        context=32768,
        kv_heads=32,
        head_dim=128,
        attention_bias="config",
        qk_norm=True,
        window="upper",
    ),
}

GENERIC = "decoder"
"""The `model_type` of models that set every field themselves."""

_GENERIC_FLAGS = ("attention_bias", "attention_out_bias", "mlp_bias", "qk_norm", "attention_sinks")
_FULL: LayerType = "full"
_SLIDING: LayerType = "sliding"
_COMMON = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"),
    *("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"),
    *("rms_norm_eps", "tie_word_embeddings", "hidden_act", "rope_theta", "rope_scaling"),
    *("rope_parameters", "partial_rotary_factor", "eos_token_id", "bos_token_id", "pad_token_id"),
    *("dtype", "torch_dtype", "sliding_window", "layer_types", "final_logit_softcapping"),
    "attn_logit_softcapping",
)
_DEFAULT_WINDOW = 4096  # where `sliding_window` is absent; null is no window
_LAYER_TYPES = {"full_attention": _FULL, "sliding_attention": _SLIDING}


def read_hf_config(
    config: Mapping[str, Any],
    where: str,
    generation: Mapping[str, Any] | None = None,
    generation_where: str = "generation_config.json",
) -> ModelConfig:
    """Build a `ModelConfig` from `config.json` and `generation_config.json`.

    Args:
        config: The content of the first.
        where: Its path, for messages.
        generation: The content of the second. Its EOS ids, where given, replace the first's.
        generation_where: Its path.

    Raises:
        CheckpointError: An unknown architecture or rope, or a missing or impossible field.
    """
    fields = Fields(config, where)
    name = fields.text("model_type")
    if config.get("quantization_config") is not None:
        raise fields.fault("quantization_config", "is not supported: the weights must be plain")
    model = replace(_read(name, fields), stated=config)
    if generation is not None:
        model = _with_generation(model, Fields(generation, generation_where))
    faults = model.faults()
    if faults:
        raise CheckpointError("\n".join(f"{where}: {fault}" for fault in faults))
    return model


def _read(name: str, fields: Fields) -> ModelConfig:
    if name == GENERIC:
        return _generic(_common(name, fields), fields)
    if name in ENCODERS:
        return read_encoder_config(name, fields)
    if name in ARCHITECTURES:
        return _named(_common(name, fields), fields)
    model = read_library_config(name, fields)
    if model is None:
        known = (*ARCHITECTURES, GENERIC)
        raise CheckpointError(
            f"{fields.where}: model_type '{name}' is not supported{did_you_mean(name, known)}; "
            f"{', '.join(known)} are, and those that an installed transformers knows."
        )
    return model


def _common(name: str, fields: Fields) -> ModelConfig:
    traits = ARCHITECTURES.get(name, Architecture())
    hidden, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    head_dim = fields.size("head_dim", traits.head_dim or hidden // heads or None)
    context = fields.size("max_position_embeddings", traits.context)
    dtype = fields.raw("dtype") or fields.raw("torch_dtype")
    return ModelConfig(
        architecture=name,
        hidden=hidden,
        intermediate=fields.size("intermediate_size"),
        layers=fields.size("num_hidden_layers"),
        heads=heads,
        kv_heads=fields.size("num_key_value_heads", traits.kv_heads or heads),
        head_dim=head_dim,
        vocab=fields.size("vocab_size"),
        context=context,
        rope=read_rope(fields, context),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        tie_embeddings=fields.flag("tie_word_embeddings"),
        hidden_act=fields.text("hidden_act", "silu"),
        dtype=dtype if isinstance(dtype, str) else None,
        eos_ids=fields.token_ids("eos_token_id"),
        bos_id=fields.token_id("bos_token_id"),
        pad_id=fields.token_id("pad_token_id"),
    )


def _named(model: ModelConfig, fields: Fields) -> ModelConfig:
    traits = ARCHITECTURES[model.architecture]
    bias = traits.attention_bias == "config" and fields.flag("attention_bias")
    window, types = _window(model, traits, fields)
    return replace(
        model,
        attention_bias=bias or traits.attention_bias == "qkv",
        attention_out_bias=bias,
        mlp_bias=traits.mlp_bias and fields.flag("mlp_bias"),
        qk_norm=traits.qk_norm,
        sliding_window=window if "sliding" in types else None,
        layer_types=types,
    )


def _window(
    model: ModelConfig, traits: Architecture, fields: Fields
) -> tuple[int | None, tuple[LayerType, ...]]:
    full, sliding = (_FULL,) * model.layers, (_SLIDING,) * model.layers
    if traits.window == "none":
        return None, full
    is_stated = "sliding_window" in fields.values
    window = fields.size_or_none("sliding_window") if is_stated else _DEFAULT_WINDOW
    if traits.window == "all":
        if fields.raw("layer_types") is not None:
            raise fields.fault("layer_types", f"does not belong to '{model.architecture}'")
        return window, sliding if window else full
    if not fields.flag("use_sliding_window") or window is None:
        return None, full
    if fields.raw("layer_types") is not None:
        return window, _layer_types(fields)
    first = fields.size("max_window_layers", 28, least=0)
    return window, full[:first] + sliding[first:]


def _layer_types(fields: Fields) -> tuple[LayerType, ...]:
    words = fields.values["layer_types"]
    if not isinstance(words, list) or any(word not in _LAYER_TYPES for word in words):
        raise fields.fault("layer_types", f"may hold {', '.join(_LAYER_TYPES)}, not {words!r}")
    return tuple(_LAYER_TYPES[word] for word in words)


def _generic(model: ModelConfig, fields: Fields) -> ModelConfig:
    known = (*_COMMON, *_GENERIC_FLAGS)
    for name in fields.values:
        if name not in known:
            raise fields.fault(name, f"is not a field of a '{GENERIC}'{did_you_mean(name, known)}")
    types = _layer_types(fields) if fields.raw("layer_types") is not None else ()
    return replace(
        model,
        attention_bias=fields.flag("attention_bias"),
        attention_out_bias=fields.flag("attention_out_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=fields.flag("qk_norm"),
        attention_sinks=fields.flag("attention_sinks"),
        layer_types=types or model.layer_types,
        sliding_window=fields.size_or_none("sliding_window"),
        logit_softcap=fields.number_or_none("final_logit_softcapping"),
        attention_softcap=fields.number_or_none("attn_logit_softcapping"),
    )


def _with_generation(model: ModelConfig, fields: Fields) -> ModelConfig:
    # `do_sample: false` is transformers' word for greedy, whatever temperature stands beside it.
    greedy = fields.raw("do_sample") is False
    defaults = GenerationDefaults(
        temperature=0.0 if greedy else fields.number_or_none("temperature", zero=True),
        top_p=fields.number_or_none("top_p"),
        top_k=fields.size_or_none("top_k", least=0),
        min_p=fields.number_or_none("min_p", zero=True),
        repetition_penalty=fields.number_or_none("repetition_penalty"),
    )
    eos = fields.token_ids("eos_token_id")
    return replace(model, generation=defaults, eos_ids=eos or model.eos_ids)
