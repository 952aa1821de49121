"""Which models of the library cannot be served, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .interface import causal_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .interface import Asked

_LAYER_TYPES = ("full_attention", "sliding_attention", "attention")
_LENGTH_ROPES = ("dynamic", "longrope")
# Arguments that say nothing more than what we attend by anyway.
_KNOWN = ("scaling", "dropout", "sliding_window", "softcap", "s_aux", "is_causal", "position_ids")


def model_faults(architecture: str, library: Any) -> list[str]:  # noqa: ANN401
    """Return why a configuration of the library is not for us, before anything is built."""
    from transformers import __version__

    if library is None:
        return [f"'{architecture}' is no model_type of transformers {__version__}"]
    if library.is_encoder_decoder:
        return [f"'{architecture}' is an encoder-decoder, not a decoder alone"]
    if library.get_text_config() is not library:
        return [f"'{architecture}' is multimodal, and only text is served"]
    kind = causal_model(library)
    if kind is None:
        return [f"transformers has no causal language model for '{architecture}'"]
    if not kind._supports_attention_backend:
        return [f"{kind.__name__} does not attend through the attention interface of transformers"]
    return list(_config_faults(library, kind))


def _config_faults(library: Any, kind: Any) -> Iterator[str]:  # noqa: ANN401
    if kind._is_stateful:
        yield f"{kind.__name__} keeps states beside keys and values (state-space, linear attention)"
    strange = sorted(set(getattr(library, "layer_types", None) or ()) - {*_LAYER_TYPES})
    if strange:
        yield f"layers of type {', '.join(strange)} are not served, only full and sliding attention"
    ropes = sorted(set(_rope_types(getattr(library, "rope_parameters", None))) & {*_LENGTH_ROPES})
    if ropes:
        yield (
            f"rope '{ropes[0]}' changes with the length of a sequence, so keys in pages would be "
            "wrong"
        )
    if getattr(library, "use_bidirectional_attention", None):
        yield "it attends in both directions"


def _rope_types(parameters: Any) -> Iterator[str]:  # noqa: ANN401 - whatever the file holds
    """Yield the stretchings of rotary positions; there may be one for each type of layer."""
    if not isinstance(parameters, Mapping):
        return
    kind = parameters.get("rope_type") or parameters.get("type")
    if isinstance(kind, str):
        yield kind
    for inner in parameters.values():
        yield from _rope_types(inner)


def module_faults(module: torch.nn.Module) -> list[str]:
    """Return why a built model may let tokens meet elsewhere than in attention."""
    mixing = {
        type(one).__name__
        for one in module.modules()
        if isinstance(one, torch.nn.Conv1d) or "Indexer" in type(one).__name__
    }
    return [f"{name} lets tokens meet outside attention" for name in sorted(mixing)]


def asked_faults(library: Any, asked: Sequence[Asked]) -> list[str]:  # noqa: ANN401
    """Return why attention as the layers asked for it cannot be given."""
    layers = library.num_hidden_layers
    if len(asked) != layers:
        return [f"it attends {len(asked)} times in {layers} layers; once in each is served"]
    found: dict[str, None] = {}
    for one in asked:
        found.update(dict.fromkeys(_call_faults(one)))
    return [*found, *_window_faults(library, asked)]


def _call_faults(asked: Asked) -> Iterator[str]:
    if asked.mask is not None:
        yield "it masks its scores in a way of its own"
    if not getattr(asked.module, "is_causal", True) or asked.options.get("is_causal") is False:
        yield "its tokens attend to later ones"
    for name, value in asked.options.items():
        if name not in _KNOWN and value is not None and value is not False:
            yield f"its attention takes '{name}', which is not served"


def _window_faults(library: Any, asked: Sequence[Asked]) -> Iterator[str]:  # noqa: ANN401
    """Yield where what layers say of their window is not what the library would mask."""
    window = getattr(library, "sliding_window", None)
    windows = [one.options.get("sliding_window") for one in asked]
    types = getattr(library, "layer_types", None)
    if types is not None:
        expected = [window if kind == "sliding_attention" else None for kind in types]
        if windows != expected:
            yield "its layers attend with other windows than its layer_types say"
    elif set(windows) - {window} or (window is not None and None in windows):
        yield "its layers do not say which of them slide"
