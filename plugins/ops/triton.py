"""Norms, rotary positions, gates and linears of few rows as Triton kernels, one launch each.

Every kernel computes in float32 and rounds where the references round, so that a sum of halves
decides the same near-ties here and there. Nothing is read by the host and every result is a fresh
tensor: the operations can be recorded in a graph, and a replay reads what its arguments hold then.
Launched early, a kernel reads weights before the kernel before it is done.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from camshaft.contracts.ops import OpImplementation, OpsProvider
from camshaft.facts import Capability

from .kernels.activation import gelu_mul, silu_mul
from .kernels.linear import linear, norm_gated_linear, norm_linear
from .kernels.norm import add_rms_norm, rms_norm
from .kernels.rope import rope_qk_norm
from .kernels.row_linear import row_linear

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.facts import DeviceFacts

    from .components import TritonOpsSettings

DTYPES = ("float32", "bfloat16", "float16")
_OPERATIONS: tuple[Callable[..., object], ...] = (
    rms_norm,
    add_rms_norm,
    rope_qk_norm,
    silu_mul,
    gelu_mul,
    linear,
    norm_linear,
    norm_gated_linear,
)


class TritonOps(OpsProvider):
    """See `OpsProvider`. Offers all operations."""

    def __init__(self, settings: TritonOpsSettings) -> None:
        self.settings = settings

    def implementations(self) -> list[OpImplementation]:
        """See `OpsProvider.implementations`. Of two versions the second wins where it can run."""
        asked = self.settings.early_launch
        choices = (False, True) if asked is None else (asked,)
        return [
            OpImplementation(one.__name__, partial(one, early=early), partial(_faults, early=early))
            for early in choices
            for one in _OPERATIONS
        ] + [
            OpImplementation(
                row_linear.__name__,
                partial(row_linear, early=early, any_width=any_width),
                partial(_faults, early=early, any_width=any_width),
            )
            for early in choices
            for any_width in (False, True)
        ]


def _faults(facts: DeviceFacts, dtype: str, *, early: bool, any_width: bool = False) -> list[str]:
    """Return why these kernels cannot serve such a device and dtype."""
    faults = []
    if Capability.TRITON not in facts.capabilities:
        faults.append(f"{facts.name or facts.kind} does not run Triton kernels")
    if dtype not in DTYPES:
        faults.append(f"{dtype} is not among {', '.join(DTYPES)}")
    if early and not _orders_launches(facts):
        faults.append("early_launch needs an NVIDIA device of sm_90 or later")
    if any_width and (facts.kind, facts.architecture) != ("cuda", "sm_90"):
        faults.append("only on sm_90 do tiles of all widths give the same bits")
    return faults


def _orders_launches(facts: DeviceFacts) -> bool:
    """Whether the device has programmatic dependent launch."""
    number = facts.architecture.removeprefix("sm_")
    return facts.kind == "cuda" and number.isdigit() and int(number) >= 90
