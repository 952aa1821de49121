"""Forms of stored keys and values that the kernels of this folder read and write themselves."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch

from camshaft.errors import PluginError

if TYPE_CHECKING:
    from camshaft.contracts.kv_quant import KVLayout, KVQuant

KNOWN = ("none", "fp8", "int8", "int4")


def require_known_form(kv_quant: KVQuant, owner: str) -> None:
    """Refuse forms that no kernel knows.

    Raises:
        PluginError: It is of another plugin.
    """
    if kv_quant.name not in KNOWN:
        raise PluginError(
            f"attention '{owner}' cannot read keys and values stored as '{kv_quant.name}'. "
            f"Set quant.kv to one of {', '.join(KNOWN)}, or take attention 'sdpa' or 'flex'."
        )


def token_bytes(layout: KVLayout) -> int:
    """Return the bytes of a token's keys and values in one layer, scales included."""
    first = layout.fields[0]
    tokens = first.shape[0 if layout.order == "tokens_first" else 1]
    sizes = (prod(one.shape) * getattr(torch, one.dtype).itemsize for one in layout.fields)
    total: int = sum(sizes) // tokens
    return total
