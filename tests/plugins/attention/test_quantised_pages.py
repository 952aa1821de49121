"""Backends that run anywhere, over pages of every form."""

from __future__ import annotations

import pytest
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.plugins.attention.components import FlexSettings, ReferenceSettings, SdpaSettings
from camshaft.plugins.attention.flex import FlexAttention
from camshaft.plugins.attention.reference import ReferenceAttention
from camshaft.plugins.attention.sdpa import SdpaAttention
from camshaft.testing.attention import AttentionContract


class TestReferenceInt4(AttentionContract):
    backend = ReferenceAttention
    form = "int4"

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return ReferenceAttention(ReferenceSettings(), spec, kv_quant)


class TestReferenceInt8(TestReferenceInt4):
    form = "int8"


class TestReferenceFp8(TestReferenceInt4):
    form = "fp8"


class TestSdpaInt8(AttentionContract):
    backend = SdpaAttention
    form = "int8"

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return SdpaAttention(SdpaSettings(), spec, kv_quant)


class TestSdpaInt4(TestSdpaInt8):
    form = "int4"


class TestSdpaFp8InBfloat16(TestSdpaInt8):
    form = "fp8"
    dtype = "bfloat16"
    tolerance = 0.03


class TestFlexInt8(AttentionContract):
    backend = FlexAttention
    form = "int8"

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return FlexAttention(FlexSettings(), spec, kv_quant)


@pytest.mark.parametrize("form", ["fp8", "int8", "int4"])
def test_nan_in_a_page_that_is_read_is_caught(form: str) -> None:
    """Poison fills float fields alone; that must do for codes that are integers."""

    class Poisoned(TestReferenceInt4):
        pass

    Poisoned.form = form
    scene = Poisoned().scene([(9, 1)])
    for tensor in scene.fields.values():
        tensor[torch.tensor(scene.tables[0][:1])] = (
            float("nan") if tensor.is_floating_point() else 0
        )
    assert scene.run()[0].isnan().all()
