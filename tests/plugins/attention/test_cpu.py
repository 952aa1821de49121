"""The attention that takes the faster form this machine has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from camshaft import native
from camshaft.contracts.attention import AttentionBackend, AttentionSpec, GraphLevel
from camshaft.contracts.kv_quant import KVQuant
from camshaft.plugins.attention.components import CpuSettings
from camshaft.plugins.attention.cpu import CpuAttention
from camshaft.plugins.attention.native import NativeAttention
from camshaft.plugins.attention.sdpa import SdpaAttention
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.testing.attention import CPU, AttentionContract

SPEC = AttentionSpec(4, 2, 16, 16, "float32", 16)


def chosen(spec: AttentionSpec) -> AttentionBackend:
    return CpuAttention(CpuSettings(), spec, PlainKV(KVNoneSettings())).chosen


class TestCpu(AttentionContract):
    backend = CpuAttention

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return CpuAttention(CpuSettings(), spec, kv_quant)


@pytest.mark.skipif(not native.expected(), reason="no compiled operations here")
def test_compiled_operations_are_taken_where_they_serve_the_heads() -> None:
    assert isinstance(chosen(SPEC), NativeAttention)
    assert isinstance(chosen(replace(SPEC, head_dim=12, value_dim=12)), SdpaAttention)


def test_torch_is_taken_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "expected", lambda: False)
    monkeypatch.setattr(native, "reasons", lambda: ("no C++ compiler was found",))
    backend = CpuAttention(CpuSettings(), SPEC, PlainKV(KVNoneSettings()))
    assert isinstance(backend.chosen, SdpaAttention)
    assert backend.graph_level is GraphLevel.NEVER
    assert backend.needs_zeroed_pages


def test_what_neither_serves_is_refused_with_both_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "expected", lambda: False)
    monkeypatch.setattr(native, "reasons", lambda: ("no C++ compiler was found",))
    assert CpuAttention.supports(replace(SPEC, sinks=True), CPU) == [
        "native: no C++ compiler was found",
        "sdpa: it has no attention sinks",
    ]
