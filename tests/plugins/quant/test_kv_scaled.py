"""The storage forms `fp8`, `int8` and `int4`."""

from __future__ import annotations

import pytest
import torch

from camshaft.contracts.attention import AttentionSpec
from camshaft.errors import PluginError
from camshaft.plugins.quant.components import Fp8KVSettings, Int4KVSettings, Int8KVSettings
from camshaft.plugins.quant.kv_fp8 import Fp8KV
from camshaft.plugins.quant.kv_int4 import Int4KV
from camshaft.plugins.quant.kv_int8 import Int8KV
from camshaft.plugins.quant.kv_scaled import ScaledKV
from camshaft.testing.kv_quant import KVQuantContract

DTYPES = ("float32", "bfloat16", "float16")

FORMS = [Fp8KV(Fp8KVSettings()), Int8KV(Int8KVSettings()), Int4KV(Int4KVSettings())]
of_every_form = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


class TestFp8(KVQuantContract):
    dtypes = DTYPES
    error = dict.fromkeys(DTYPES, 0.03)

    def make(self) -> ScaledKV:
        return Fp8KV(Fp8KVSettings())


class TestInt8(KVQuantContract):
    dtypes = DTYPES
    error = dict.fromkeys(DTYPES, 0.01)

    def make(self) -> ScaledKV:
        return Int8KV(Int8KVSettings())


class TestInt4(KVQuantContract):
    dtypes = DTYPES
    error = dict.fromkeys(DTYPES, 0.11)

    def make(self) -> ScaledKV:
        return Int4KV(Int4KVSettings())


def test_a_page_is_codes_and_then_scales() -> None:
    spec = AttentionSpec(4, 2, 64, 64, "bfloat16", page_tokens=16)
    shapes = {
        form.name: [one.shape for one in form.layout(spec, "heads_first").fields] for form in FORMS
    }
    scaled = [(2, 16, 64), (2, 16, 64), (2, 16, 1), (2, 16, 1)]
    packed = [(2, 16, 32), (2, 16, 32), (2, 16, 2), (2, 16, 2)]
    assert shapes == {"fp8": scaled, "int8": scaled, "int4": packed}


def test_codes_are_those_of_the_definition() -> None:
    x = torch.tensor([[-127.0, 63.5, 0.2, 1.0]])
    codes, scales = FORMS[1].encode(x)
    assert codes.tolist() == [[-127, 64, 0, 1]]
    assert scales.tolist() == [[1.0]]
    codes, scales = FORMS[0].encode(torch.tensor([[-224.0, 1.03, 0.5, 0.0]]))
    assert codes.float().tolist() == [[-448.0, 2.0, 1.0, 0.0]]
    assert scales.tolist() == [[0.5]]


def test_two_elements_share_a_byte_the_first_in_its_low_half() -> None:
    codes, scales = FORMS[2].encode(torch.tensor([[-8.0, 7.0, 0.0, 1.4]]))
    assert codes.tolist() == [[0xF0, 0x98]]
    assert scales.tolist() == [[1.0, 0.0]]


@of_every_form
def test_a_head_that_is_constant_comes_back(form: ScaledKV) -> None:
    for value in (0.0, 0.75, -3.0):
        codes, scales = form.encode(torch.full((1, 8), value))
        found = form.decode(codes, scales.float())[0].tolist()
        assert found == pytest.approx([value] * 8, rel=5e-4)  # the scale's 11 bits


@of_every_form
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
def test_garbage_stays_visible(form: ScaledKV, garbage: float) -> None:
    codes, scales = form.encode(torch.tensor([[1.0, garbage, 2.0, 3.0]]))
    assert not form.decode(codes, scales.float()).isfinite().any()


@of_every_form
def test_pages_that_were_filled_with_nan_read_as_nan(form: ScaledKV) -> None:
    spec = AttentionSpec(4, 2, 8, 8, "float32", page_tokens=3)
    kv = {}
    for field in form.layout(spec, "heads_first").fields:
        kind: torch.dtype = getattr(torch, field.dtype)
        kv[field.name] = torch.zeros((2, *field.shape), dtype=kind)
        kv[field.name][torch.tensor([1])] = float("nan") if kind.is_floating_point else 0
    k, v = form.read(kv, torch.arange(2), torch.float32, "heads_first")
    assert k.isnan().any(dim=(1, 2, 3)).tolist() == [False, True]
    assert v[1].isnan().all()


def test_heads_that_do_not_fill_bytes_are_refused_with_a_cure() -> None:
    spec = AttentionSpec(4, 2, 7, 8, "float32", page_tokens=3)
    with pytest.raises(PluginError, match="Set quant.kv to int8"):
        FORMS[2].layout(spec, "heads_first")
