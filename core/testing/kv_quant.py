"""The contract of storage forms for keys and values, as tests to inherit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from ..contracts.attention import AttentionSpec

if TYPE_CHECKING:
    from ..contracts.kv_quant import KVQuant

PAGES, TOKENS, HEADS, KEY, VALUE = 6, 4, 2, 32, 64
ORDERS = ("tokens_first", "heads_first")


class KVQuantContract:
    """Subclass it, define `make`, adjust the attributes, and run pytest.

    Attributes:
        dtypes: Dtypes of activations that it stores.
        error: Most that a value may come back off, by dtype: the norm of the difference over the
            norm of what was written.
        value_dim: Size of values, for forms that need that of keys.
    """

    dtypes: tuple[str, ...] = ("float32", "bfloat16")
    error: dict[str, float] = {"float32": 0.0, "bfloat16": 0.0}  # noqa: RUF012
    value_dim = VALUE

    def make(self) -> KVQuant:
        """Return the storage form under test."""
        raise NotImplementedError

    def spec(self, dtype: str) -> AttentionSpec:
        """Return what the layers ask for."""
        return AttentionSpec(4, HEADS, KEY, self.value_dim, dtype, TOKENS)

    def pages(self, dtype: str, order: str, fill: float = 0.0) -> dict[str, torch.Tensor]:
        """Return a pool of pages, floats of which are `fill`."""
        pool = {}
        for field in self.make().layout(self.spec(dtype), order).fields:
            kind: torch.dtype = getattr(torch, field.dtype)
            value = fill if kind.is_floating_point else 0
            pool[field.name] = torch.full((PAGES, *field.shape), value, dtype=kind)
        return pool

    def values(self, tokens: int, dtype: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys [T, G, D] and values [T, G, Dv]."""
        generator = torch.Generator().manual_seed(seed)
        kind: torch.dtype = getattr(torch, dtype)
        return (
            torch.randn(tokens, HEADS, KEY, generator=generator).to(kind),
            torch.randn(tokens, HEADS, self.value_dim, generator=generator).to(kind),
        )

    def check(self, found: torch.Tensor, written: torch.Tensor, dtype: str) -> None:
        """Compare what was read with what was written."""
        assert found.shape == written.shape
        difference = (found.float() - written.float()).norm()
        assert difference <= self.error[dtype] * written.float().norm()

    def test_a_form_has_a_name_and_a_layout_in_both_orders(self) -> None:
        """Fields differ in name, sizes are positive, dtypes are torch's."""
        for order in ORDERS:
            layout = self.make().layout(self.spec(self.dtypes[0]), order)
            assert layout.order == order
            names = [field.name for field in layout.fields]
            assert len(set(names)) == len(names) > 0
            assert all(extent > 0 for field in layout.fields for extent in field.shape)
            assert all(hasattr(torch, field.dtype) for field in layout.fields)
        assert self.make().name

    @pytest.mark.parametrize("order", ORDERS)
    def test_what_is_written_is_read_at_its_place(self, order: str) -> None:
        """Tokens go to scattered slots; each comes back from its page, head and offset."""
        for dtype in self.dtypes:
            pool = self.pages(dtype, order)
            slots = torch.randperm(PAGES * TOKENS, generator=torch.Generator().manual_seed(5))[:9]
            k, v = self.values(9, dtype)
            self.make().write(pool, slots // TOKENS, slots % TOKENS, k, v, order)
            keys, values = self.make().read(pool, torch.arange(PAGES), getattr(torch, dtype), order)
            assert keys.shape == (PAGES, HEADS, TOKENS, KEY)
            assert values.shape == (PAGES, HEADS, TOKENS, self.value_dim)
            self.check(keys[slots // TOKENS, :, slots % TOKENS], k, dtype)
            self.check(values[slots // TOKENS, :, slots % TOKENS], v, dtype)

    @pytest.mark.parametrize("order", ORDERS)
    def test_slots_that_are_not_written_stay_as_they_are(self, order: str) -> None:
        """Neighbours in the page belong to earlier tokens, maybe of another request."""
        for dtype in self.dtypes:
            pool, kind = self.pages(dtype, order), getattr(torch, dtype)
            first = self.values(TOKENS, dtype, seed=1)
            page = torch.full((TOKENS,), 3)
            self.make().write(pool, page, torch.arange(TOKENS), *first, order)
            before = self.make().read(pool, torch.arange(PAGES), kind, order)
            before = (before[0].clone(), before[1].clone())
            one = self.values(1, dtype, seed=2)
            self.make().write(pool, torch.tensor([3]), torch.tensor([2]), *one, order)
            after = self.make().read(pool, torch.arange(PAGES), kind, order)
            for old, new, written in zip(before, after, one, strict=True):
                self.check(new[3, :, 2], written[0], dtype)
                new = new.clone()
                new[3, :, 2] = old[3, :, 2]
                assert torch.equal(new, old)

    @pytest.mark.parametrize("order", ORDERS)
    def test_garbage_in_other_slots_does_not_spread(self, order: str) -> None:
        """NaN in slots that nobody wrote reaches no written one."""
        for dtype in self.dtypes:
            pool = self.pages(dtype, order, fill=float("nan"))
            k, v = self.values(2, dtype)
            page, offset = torch.tensor([1, 4]), torch.tensor([0, 3])
            self.make().write(pool, page, offset, k, v, order)
            keys, values = self.make().read(pool, page, getattr(torch, dtype), order)
            self.check(keys[[0, 1], :, offset], k, dtype)
            self.check(values[[0, 1], :, offset], v, dtype)

    @pytest.mark.parametrize("order", ORDERS)
    def test_pages_of_any_shape_are_read(self, order: str) -> None:
        """A table [B, n] gives [B, n, G, P, D], pages repeated where it repeats them."""
        for dtype in self.dtypes:
            pool, kind = self.pages(dtype, order), getattr(torch, dtype)
            everywhere = torch.arange(PAGES * TOKENS)
            written = self.values(PAGES * TOKENS, dtype)
            self.make().write(pool, everywhere // TOKENS, everywhere % TOKENS, *written, order)
            table = torch.tensor([[2, 5, 2], [0, 1, 4]])
            flat = self.make().read(pool, torch.tensor([2, 5, 2, 0, 1, 4]), kind, order)
            for found, expected in zip(
                self.make().read(pool, table, kind, order), flat, strict=True
            ):
                assert found.shape == (2, 3, HEADS, TOKENS, found.shape[-1])
                assert torch.equal(found.reshape(expected.shape), expected)

    @pytest.mark.parametrize("order", ORDERS)
    def test_the_dtype_read_is_the_one_asked_for(self, order: str) -> None:
        """Attention may compute in float32 over pages of another dtype."""
        for dtype in self.dtypes:
            pool = self.pages(dtype, order)
            for kind in (torch.float32, torch.bfloat16):
                keys, values = self.make().read(pool, torch.tensor([1]), kind, order)
                assert keys.dtype == values.dtype == kind

    def test_both_orders_store_the_same_values(self) -> None:
        """An order is a place in memory, not another form."""
        for dtype in self.dtypes:
            k, v = self.values(7, dtype)
            page, offset = torch.arange(7) % PAGES, torch.arange(7) % TOKENS
            results = []
            for order in ORDERS:
                pool = self.pages(dtype, order)
                self.make().write(pool, page, offset, k, v, order)
                results.append(self.make().read(pool, page, getattr(torch, dtype), order))
            assert torch.equal(results[0][0], results[1][0])
            assert torch.equal(results[0][1], results[1][1])

    def test_writing_leaves_the_keys_and_values_alone(self) -> None:
        """Attention still reads them."""
        for dtype in self.dtypes:
            k, v = self.values(3, dtype)
            before = k.clone(), v.clone()
            pool = self.pages(dtype, ORDERS[0])
            self.make().write(
                pool, torch.tensor([1, 1, 2]), torch.tensor([0, 1, 0]), k, v, ORDERS[0]
            )
            assert torch.equal(k, before[0])
            assert torch.equal(v, before[1])
