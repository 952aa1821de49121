"""Norms and gates compiled for this processor."""

from __future__ import annotations

import pytest
import torch

from camshaft import ops
from camshaft.contracts.ops import OpsProvider
from camshaft.native import reasons
from camshaft.native.rows import gelu_mul, silu_mul
from camshaft.plugins.ops.components import NativeOpsSettings
from camshaft.plugins.ops.native import NativeOps
from camshaft.testing.ops import OpsProviderContract

pytestmark = pytest.mark.skipif(bool(reasons()), reason="; ".join(reasons()))


class TestNativeOps(OpsProviderContract):
    def make(self) -> OpsProvider:
        return NativeOps(NativeOpsSettings())


def test_it_offers_norms_and_gates() -> None:
    names = [one.name for one in NativeOps(NativeOpsSettings()).implementations()]
    assert names == ["rms_norm", "add_rms_norm", "silu_mul", "gelu_mul"]


@pytest.mark.parametrize("width", [1, 15, 16, 33])
def test_gates_of_any_width_and_of_extreme_values(width: int) -> None:
    values = torch.tensor([0.0, -0.0, 1e-30, -90.0, 90.0, -200.0, 3e4, -3e4])
    gate = values.repeat(width)[: 8 * width].view(8, width)
    both = torch.cat((gate, torch.full_like(gate, 2.0)), dim=1)
    torch.testing.assert_close(silu_mul(both), ops.silu_mul(both), rtol=1e-6, atol=1e-30)
    torch.testing.assert_close(gelu_mul(both), ops.gelu_mul(both), rtol=1e-5, atol=1e-5)
