from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from camshaft.contracts.attention import AttentionMeta, GraphLevel
from camshaft.contracts.hardware import Outputs, Recording
from camshaft.plugins.attention.reference import ReferenceAttention
from camshaft.plugins.hardware.cpu import CpuBackend


@pytest.fixture
def recordable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference attention plan in each replay, and a CPU warm up as a device does."""
    plan, forward = ReferenceAttention.plan, ReferenceAttention.forward

    def plan_later(self: Any, meta: AttentionMeta, *, capture: bool = False) -> Any:
        return None if capture else plan(self, meta)

    def forward_now(
        self: Any, layer: Any, q: Any, k: Any, v: Any, kv: Any, meta: AttentionMeta, out: Any
    ) -> None:
        meta = meta if meta.plan is not None else replace(meta, plan=plan(self, meta))
        forward(self, layer, q, k, v, kv, meta, out)

    monkeypatch.setattr(ReferenceAttention, "graph_level", GraphLevel.SINGLE_TOKEN)
    monkeypatch.setattr(ReferenceAttention, "plan", plan_later)
    monkeypatch.setattr(ReferenceAttention, "forward", forward_now)
    capture = CpuBackend.capture

    def warm_up(self: CpuBackend, function: Callable[[], Outputs], lane: int = 0) -> Recording:
        for _ in range(3):
            function()
        return capture(self, function, lane)

    monkeypatch.setattr(CpuBackend, "capture", warm_up)
