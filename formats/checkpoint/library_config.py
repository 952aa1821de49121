"""Configurations of models that only the transformers library knows.

The library fills in what `config.json` leaves unsaid and has the field names of each architecture.
It is imported here and takes a second, so models whose fields we know never come this way.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from camshaft.errors import CheckpointError

from .config import ModelConfig

if TYPE_CHECKING:
    from .fields import Fields

# Ours, the library's. Every architecture is to answer to the library's names.
_SIZES = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
}


def read_library_config(name: str, fields: Fields) -> ModelConfig | None:
    """Build a `ModelConfig` with the library's help.

    It says how large the model is and which ids are special. What its layers do stands in `stated`
    alone.

    Args:
        name: The `model_type`.
        fields: Of `config.json`.

    Returns:
        None if the library does not know the name, or is not installed.

    Raises:
        CheckpointError: The library refuses the fields, or there is no decoder in them.
    """
    library = _read(name, fields)
    if library is None:
        return None
    text = library.get_text_config(decoder=True)
    if library.is_encoder_decoder:
        raise CheckpointError(
            f"{fields.where}: model_type '{name}' is not supported: it is an encoder-decoder."
        )
    sizes: dict[str, Any] = {ours: _size(text, theirs) for ours, theirs in _SIZES.items()}
    missing = [theirs for ours, theirs in _SIZES.items() if not sizes[ours]]
    if missing:
        raise CheckpointError(
            f"{fields.where}: model_type '{name}' is not supported: it has no "
            f"{', '.join(missing)}, as a decoder with attention has."
        )
    heads, dtype = sizes["heads"], fields.raw("dtype") or fields.raw("torch_dtype")
    return ModelConfig(
        architecture=name,
        **sizes,
        intermediate=_size(text, "intermediate_size") or 4 * sizes["hidden"],
        kv_heads=_size(text, "num_key_value_heads") or heads,
        head_dim=_size(text, "head_dim") or sizes["hidden"] // heads,
        tie_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
        dtype=dtype if isinstance(dtype, str) else None,
        eos_ids=fields.token_ids("eos_token_id"),
        bos_id=fields.token_id("bos_token_id"),
        pad_id=fields.token_id("pad_token_id"),
    )


def _read(name: str, fields: Fields) -> Any:  # noqa: ANN401 - a class of the library
    if find_spec("transformers") is None:
        return None
    from transformers import CONFIG_MAPPING

    if name not in CONFIG_MAPPING:
        return None
    try:
        return CONFIG_MAPPING[name].from_dict(dict(fields.values))
    except Exception as error:
        # each architecture checks its own fields, and raises what it likes
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{fields.where}: transformers refuses it: {reason}") from error


def _size(text: Any, name: str) -> int:  # noqa: ANN401
    """Return a size, or 0 where the model has none, or one for each layer."""
    try:
        value = getattr(text, name)
    except Exception:  # noqa: BLE001 - absent, or refused by the library
        return 0
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
