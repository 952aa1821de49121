"""What a model of the library asks of attention, found by running it without weights.

Families differ in where heads, windows, scales and caps stand in their configuration, but all of
them say it when they attend. So the model is built on torch's `meta` device, where tensors have
shapes and no values, and three tokens pass through it. That takes tenths of a second at any size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from camshaft.errors import CheckpointError

from .interface import Asked, built, call, library_config, register
from .refusals import asked_faults, model_faults, module_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from camshaft.checkpoint import ModelConfig

_TOKENS = 3
_DTYPE = torch.bfloat16  # the only one in which the library runs experts on `meta`


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer asks of attention.

    Attributes:
        heads: H.
        kv_heads: G.
        head_dim: D.
        value_dim: Of values.
        scale: Multiplies scores.
        window: Tokens that a query sees, itself included; 0 is all.
        soft_cap: Of scores; 0 is off.
        sinks: It has a learned logit per head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    scale: float
    window: int
    soft_cap: float
    sinks: bool

    @classmethod
    def of(cls, asked: Asked) -> LayerShape:
        """Return the shape of a call."""
        options = asked.options
        heads, width = asked.query.shape[1:]
        scale = options.get("scaling")
        return cls(
            heads=heads,
            kv_heads=asked.key.shape[1],
            head_dim=width,
            value_dim=asked.value.shape[2],
            scale=float(width**-0.5 if scale is None else scale),
            window=options.get("sliding_window") or 0,
            soft_cap=options.get("softcap") or 0.0,
            sinks=options.get("s_aux") is not None,
        )


@dataclass(frozen=True, slots=True)
class Examination:
    """What was found.

    Attributes:
        faults: Why the model cannot be served, in words.
        layers: In the order in which they attend; empty with faults.
        weights: Names of all parameters, tied ones once.
    """

    faults: tuple[str, ...]
    layers: tuple[LayerShape, ...] = ()
    weights: tuple[str, ...] = ()


def examine(config: ModelConfig) -> Examination:
    """Return whether and how a model can be served. No weight is read."""
    if config.stated is None:
        return Examination(("it reads config.json, which GGUF files do not have",))
    return _examine(json.dumps(dict(config.stated), sort_keys=True))


@lru_cache(maxsize=8)
def _examine(stated: str) -> Examination:
    register()
    content = json.loads(stated)
    try:
        library = library_config(content)
    except Exception as error:  # noqa: BLE001 - it raises what it likes
        return Examination((f"transformers refuses its config.json: {_words(error)}",))
    faults = model_faults(content["model_type"], library)
    if faults:
        return Examination(tuple(faults))
    try:
        module, asked = _run(library)
    except Exception as error:  # noqa: BLE001 - code of others, for shapes that nobody has tried
        return Examination((f"transformers cannot run it without weights: {_words(error)}",))
    faults = [*module_faults(module), *asked_faults(library, asked)]
    if faults:
        return Examination(tuple(faults))
    names = tuple(name for name, _ in module.named_parameters())
    return Examination((), tuple(map(LayerShape.of, asked)), names)


def _run(library: Any) -> tuple[torch.nn.Module, list[Asked]]:  # noqa: ANN401
    """Return the model without values, and what its layers asked."""
    asked: list[Asked] = []

    def attends(one: Asked) -> torch.Tensor:
        asked.append(one)
        return one.value.new_empty(*one.query.shape[:2], one.value.shape[2])

    with torch.device("meta"), torch.no_grad():
        module: Any = built(library, _DTYPE)
        call(module.base_model, *places(_TOKENS), attends)
    return module, asked


def places(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens 0, 1, ... at positions 0, 1, ..., int64 [count] both."""
    return torch.arange(count), torch.arange(count)


def checked(config: ModelConfig, source: str) -> Examination:
    """Return what was found about a model without faults.

    Raises:
        CheckpointError: There are faults.
    """
    found = examine(config)
    if found.faults:
        raise CheckpointError(f"{source}: {'; '.join(found.faults)}.")
    return found


def kinds(layers: Sequence[LayerShape]) -> list[LayerShape]:
    """Return the shapes whose layers can share a KV group, full ones first."""
    return sorted(dict.fromkeys(map(_kind, layers)), key=lambda one: (one.window, one.head_dim))


def members(layers: Sequence[LayerShape], kind: LayerShape) -> Iterator[int]:
    """Yield the layers of a kind."""
    return (at for at, one in enumerate(layers) if _kind(one) == kind)


def _kind(layer: LayerShape) -> LayerShape:
    """Leave out what pages and backends do not depend on."""
    return replace(layer, scale=1.0)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
