"""The library's attention interface: whoever runs a model says who attends for it.

Every model of the library that supports the interface looks up its attention function by the name
in its configuration, and passes keyword arguments of its forward through to that function. So the
one that is registered here attends by whatever it is handed, and nothing global is left behind.
Masks are not built for a name that the library does not know: pages need none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "camshaft"
"""Of our attention function in the library."""


class Asked(NamedTuple):
    """What a layer asks of attention.

    Attributes:
        query: [T, H, D].
        key: [T, G, D].
        value: [T, G, Dv].
        mask: What the model made of its own accord; None is causal.
        module: The layer's attention.
        options: Other arguments, by the library's names.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    module: torch.nn.Module
    options: dict[str, Any]


Attends = Callable[[Asked], torch.Tensor]
"""Returns [T, H, Dv]."""


def library_config(stated: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a class of the library
    """Return the library's own configuration for a `config.json`, or None if it knows none."""
    from transformers import CONFIG_MAPPING

    name = stated["model_type"]
    return CONFIG_MAPPING[name].from_dict(dict(stated)) if name in CONFIG_MAPPING else None


def causal_model(library: Any) -> Any:  # noqa: ANN401
    """Return the class of the language model for a configuration, or None."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    if type(library) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    found: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(library)]
    return found[0] if isinstance(found, list | tuple) else found


def register() -> None:
    """Make our attention function known to the library. Harmless to repeat."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


def built(library: Any, dtype: torch.dtype) -> Any:  # noqa: ANN401 - a class of the library
    """Return a model with random weights, on torch's default device; ready for `call`."""
    kind = causal_model(library)
    return prepared(kind._from_config(library, dtype=dtype, attn_implementation=NAME))


def prepared(module: Any) -> Any:  # noqa: ANN401
    """Return a model that is ready for `call`."""
    # With it the library looks for padding among the ids at every step, and the host waits for the
    # answer. Some configurations check what is assigned, and want a number here.
    vars(module.config)["pad_token_id"] = None
    return module.eval().requires_grad_(False)


def call(
    module: torch.nn.Module, tokens: torch.Tensor, positions: torch.Tensor, attends: Attends
) -> Any:  # noqa: ANN401 - a class of the library
    """Run a model, with its head or without.

    Args:
        module: Built with `NAME`.
        tokens: int64 [T].
        positions: int64 [T].
        attends: Is asked once for each layer, in order.

    Returns:
        The library's output, with [1, T, V] logits or, first, [1, T, C] behind the last norm.
    """
    return module(
        input_ids=tokens[None], position_ids=positions[None], use_cache=False, attends=attends
    )


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    attends: Attends | None = None,
    **options: Any,  # noqa: ANN401 - differs between models
) -> tuple[torch.Tensor, None]:
    """Attend as the library calls it: [1, H, T, D] each in, [1, T, H, Dv] out."""
    if attends is None:
        raise TypeError(f"{type(module).__name__} is not handed the arguments of the model")
    q, k, v = (one[0].transpose(0, 1) for one in (query, key, value))
    asked = Asked(q, k, v, attention_mask, module, options)
    return attends(asked)[None], None
