"""Norms and gates compiled for this processor, one call each on all threads.

Torch spends some 15 us on a norm of one row and starts its own threads for it; these take part in
recorded steps, where a call costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.contracts.ops import OpImplementation, OpsProvider
from camshaft.native import reasons, rows

if TYPE_CHECKING:
    from camshaft.facts import DeviceFacts

    from .components import NativeOpsSettings

DTYPES = ("float32", "bfloat16")


class NativeOps(OpsProvider):
    """See `OpsProvider`. Offers norms and gates."""

    def __init__(self, settings: NativeOpsSettings) -> None:
        self.settings = settings

    def implementations(self) -> list[OpImplementation]:
        """See `OpsProvider.implementations`."""
        functions = (rms_norm, add_rms_norm, rows.silu_mul, rows.gelu_mul)
        return [OpImplementation(one.__name__, one, _faults) for one in functions]


def _faults(facts: DeviceFacts, dtype: str) -> list[str]:
    faults = list(reasons()) if facts.kind == "cpu" else [f"it runs on cpu, not on {facts.kind}"]
    if dtype not in DTYPES:
        faults.append(f"{dtype} is not among {', '.join(DTYPES)}")
    return faults


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """See `Ops.rms_norm`. Any shape; the last dimension is normalised."""
    flat = rows.matrix(x)
    out = torch.empty_like(flat)
    rows.rms_norm(flat, None, weight, eps, out)
    return out.view(x.shape)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `Ops.add_rms_norm`. The sum is left in `residual`."""
    out = torch.empty_like(x)
    rows.rms_norm(x, residual, weight, eps, out)
    return out, residual
