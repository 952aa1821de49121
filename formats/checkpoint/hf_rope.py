"""Rotary positions as `config.json` writes them, in transformers 5's form and in the older one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from camshaft.errors import CheckpointError, did_you_mean

from .config import Rope, RopeKind
from .fields import Fields

if TYPE_CHECKING:
    from collections.abc import Mapping

# Which fields belong to which stretching; `rope_theta`, `rope_type` and the share go with all.
_FIELDS: dict[RopeKind, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "dynamic": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
    "yarn": frozenset(
        {
            *("factor", "attention_factor", "beta_fast", "beta_slow"),
            *("mscale", "mscale_all_dim", "truncate"),
        }
    ),
    "longrope": frozenset({"factor", "attention_factor", "short_factor", "long_factor"}),
}
_ALWAYS = frozenset(
    {"rope_theta", "rope_type", "type", "partial_rotary_factor", "original_max_position_embeddings"}
)
_OLD_NAMES = {"su": "longrope"}


def read_rope(fields: Fields, context: int) -> Rope:
    """Read `rope_parameters`, or `rope_theta` and `rope_scaling`.

    Raises:
        CheckpointError: An unknown kind, a field that it does not have, or one that it lacks.
    """
    scaling = _scaling(fields)
    inner = Fields(scaling, fields.where, "")
    kind = _kind(scaling, fields.where)
    unknown = set(scaling) - _FIELDS[kind] - _ALWAYS
    if unknown:
        raise CheckpointError(
            f"{fields.where}: rope_parameters of '{kind}' have no {', '.join(sorted(unknown))}."
        )
    theta = inner.number("rope_theta", fields.number("rope_theta", 10000.0))
    share = inner.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    plain = Rope(theta=theta, kind=kind, rotary_share=share)
    if kind == "default":
        return plain
    return _stretched(plain, inner, context)


def _scaling(fields: Fields) -> Mapping[str, Any]:
    for name in ("rope_parameters", "rope_scaling"):
        value = fields.raw(name)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise fields.fault(name, f"must be a mapping, not {value!r}")
        nested = [key for key, inner in value.items() if isinstance(inner, dict)]
        if nested:
            raise fields.fault(name, f"of a kind of layer ({nested[0]}) is not supported")
        return value
    return {}


def _kind(scaling: Mapping[str, Any], where: str) -> RopeKind:
    word = str(scaling.get("rope_type", scaling.get("type", "default")))
    word = _OLD_NAMES.get(word, word)
    for kind in _FIELDS:
        if kind == word:
            return kind
    raise CheckpointError(
        f"{where}: rope_type '{word}' is not supported{did_you_mean(word, _FIELDS)}; "
        f"{', '.join(_FIELDS)} are."
    )


def _stretched(plain: Rope, inner: Fields, context: int) -> Rope:
    given = _FIELDS[plain.kind]
    is_longrope = plain.kind == "longrope"
    is_llama3 = plain.kind == "llama3"
    original = inner.size("original_max_position_embeddings", context)
    factor = inner.number_or_none("factor")
    if factor is None and (plain.kind in ("yarn", "longrope")):
        factor = context / original
    return Rope(
        theta=plain.theta,
        kind=plain.kind,
        rotary_share=plain.rotary_share,
        factor=factor if factor is not None else inner.number("factor"),
        original_context=original,
        low_freq_factor=inner.number("low_freq_factor") if is_llama3 else None,
        high_freq_factor=inner.number("high_freq_factor") if is_llama3 else None,
        beta_fast=inner.number("beta_fast", 32.0),
        beta_slow=inner.number("beta_slow", 1.0),
        attention_factor=inner.number_or_none("attention_factor"),
        mscale=inner.number_or_none("mscale", zero=True),
        mscale_all_dim=inner.number_or_none("mscale_all_dim", zero=True),
        truncate=inner.flag("truncate", default=True) if "truncate" in given else True,
        short_factors=inner.numbers("short_factor") if is_longrope else (),
        long_factors=inner.numbers("long_factor") if is_longrope else (),
    )
