"""The contract of storage forms rejects wrong ones."""

from __future__ import annotations

import pytest
import torch

from camshaft.component import Settings
from camshaft.contracts.attention import AttentionSpec
from camshaft.contracts.kv_quant import KVField, KVLayout, KVQuant
from camshaft.testing.kv_quant import KVQuantContract
from camshaft.testing.rejects import failures

Pool = dict[str, torch.Tensor]


class Simple(KVQuant):
    """A right form, in plain indexing."""

    name = "simple"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def layout(self, spec: AttentionSpec, order: str) -> KVLayout:
        sizes = (spec.page_tokens, spec.kv_heads)
        outer = sizes if order == "tokens_first" else sizes[::-1]
        fields = (("k", spec.head_dim), ("v", spec.value_dim))
        return KVLayout(order, tuple(KVField(n, (*outer, d), spec.dtype) for n, d in fields))

    def write(
        self,
        kv: Pool,
        pages: torch.Tensor,
        offsets: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        order: str,
    ) -> None:
        for field, values in (("k", k), ("v", v)):
            for page, offset, value in zip(pages, offsets, values, strict=True):
                if order == "tokens_first":
                    kv[field][page, offset] = value
                else:
                    kv[field][page, :, offset] = value

    def read(
        self, kv: Pool, pages: torch.Tensor, dtype: torch.dtype, order: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = (kv[name][pages].to(dtype) for name in ("k", "v"))
        return (k, v) if order == "heads_first" else (k.transpose(-3, -2), v.transpose(-3, -2))


class ForgetsTheOrder(Simple):
    def read(
        self, kv: Pool, pages: torch.Tensor, dtype: torch.dtype, order: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().read(kv, pages, dtype, "heads_first")


class ClearsThePage(Simple):
    def write(
        self,
        kv: Pool,
        pages: torch.Tensor,
        offsets: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        order: str,
    ) -> None:
        kv["k"][pages] = 0
        super().write(kv, pages, offsets, k, v, order)


class SwapsKeysAndValues(Simple):
    def read(
        self, kv: Pool, pages: torch.Tensor, dtype: torch.dtype, order: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = super().read(kv, pages, dtype, order)
        return v, k


class OneScaleAPage(Simple):
    """Divides a page by its largest element and back: NaN beside a token reaches it."""

    def read(
        self, kv: Pool, pages: torch.Tensor, dtype: torch.dtype, order: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k, v = super().read(kv, pages, dtype, order)
        scale = k.abs().amax(dim=(-2, -1), keepdim=True).clamp(min=1)
        return k / scale * scale, v


class WrongDtype(Simple):
    def read(
        self, kv: Pool, pages: torch.Tensor, dtype: torch.dtype, order: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().read(kv, pages, torch.float32, order)


class Coarse(Simple):
    def write(
        self,
        kv: Pool,
        pages: torch.Tensor,
        offsets: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        order: str,
    ) -> None:
        super().write(kv, pages, offsets, k.half().round(), v, order)


class ScalesInPlace(Simple):
    def write(
        self,
        kv: Pool,
        pages: torch.Tensor,
        offsets: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        order: str,
    ) -> None:
        super().write(kv, pages, offsets, k, v, order)
        k.mul_(2)


def contract_of(form: type[Simple], values: int = 64) -> type[KVQuantContract]:
    class Contract(KVQuantContract):
        value_dim = values

        def make(self) -> KVQuant:
            return form(Settings())

    return Contract


def test_a_right_form_passes() -> None:
    assert failures(contract_of(Simple)) == []


@pytest.mark.parametrize(
    ("wrong", "found_by"),
    [
        (ForgetsTheOrder, "test_what_is_written_is_read_at_its_place"),
        (ClearsThePage, "test_slots_that_are_not_written_stay_as_they_are"),
        (SwapsKeysAndValues, "test_what_is_written_is_read_at_its_place"),
        (OneScaleAPage, "test_garbage_in_other_slots_does_not_spread"),
        (WrongDtype, "test_the_dtype_read_is_the_one_asked_for"),
        (Coarse, "test_what_is_written_is_read_at_its_place"),
        (ScalesInPlace, "test_writing_leaves_the_keys_and_values_alone"),
    ],
)
def test_a_wrong_form_is_rejected(wrong: type[Simple], found_by: str) -> None:
    assert found_by in failures(contract_of(wrong), only=[found_by])


def test_swapped_keys_and_values_of_one_size_are_found() -> None:
    assert "test_what_is_written_is_read_at_its_place" in failures(
        contract_of(SwapsKeysAndValues, values=32)
    )
