"""Attention libraries that an adapter runs where they are installed."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from camshaft.errors import PluginError

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionSpec
    from camshaft.contracts.kv_quant import KVQuant
    from camshaft.facts import DeviceFacts


def is_installed(module: str) -> bool:
    """Return whether a library is there, without importing it."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a bare namespace has none


def load(module: str, owner: str) -> Any:  # noqa: ANN401
    """Import a library.

    Args:
        module: Its name.
        owner: The attention that wants it.

    Raises:
        PluginError: It is absent or broken, such as one built for another torch.
    """
    try:
        return import_module(module)
    except Exception as error:
        raise PluginError(
            f"attention '{owner}': {module} does not import: {error}. Install it for this torch, "
            "or take attention 'triton'."
        ) from error


def common_limits(spec: AttentionSpec, facts: DeviceFacts) -> list[str]:
    """Return what keeps any of these libraries from serving `spec`."""
    reasons = []
    if spec.dtype not in ("bfloat16", "float16"):
        reasons.append(f"it computes in bfloat16 and float16, not in {spec.dtype}")
    if spec.head_dim != spec.value_dim:
        reasons.append(f"keys have {spec.head_dim} elements and values {spec.value_dim}")
    if spec.sinks:
        reasons.append("it has no attention sinks")
    if not spec.causal:
        reasons.append("it is causal only")
    if spec.deterministic:
        reasons.append("its results depend on the batch")
    if facts.architecture.startswith("sm_") and int(facts.architecture[3:].rstrip("af")) < 80:
        reasons.append(f"it needs sm_80 or newer, and {facts.name} is {facts.architecture}")
    return reasons


def require_plain_pages(kv_quant: KVQuant, owner: str) -> None:
    """Refuse pages in a form that the library does not know.

    Raises:
        PluginError: Keys and values are quantised.
    """
    if kv_quant.name != "none":
        raise PluginError(
            f"attention '{owner}' cannot read keys and values stored as '{kv_quant.name}'. "
            "Set quant.kv to none, or take attention 'sdpa'."
        )
