"""The compiled operations of attention as they are called; what they compute is compared with its
twins in tests/plugins/attention/test_native.py.
"""

from __future__ import annotations

import pytest
import torch

from camshaft import native
from camshaft.native.attention import Heads, Pages, Rule, Turn, attend, rotate

pytestmark = pytest.mark.skipif(not native.expected(), reason="no compiled operations here")

HEADS = Heads(6, 2, 32, 16)


def pages_of(dtype: torch.dtype) -> Pages:
    keys, values = torch.randn(9, 2, 16, 32), torch.randn(9, 2, 16, 16)
    return Pages(keys.to(dtype), values.to(dtype), None, None, 0)


def attended(
    pages: Pages, q: torch.Tensor, start: list[int], context: list[int], kind: torch.dtype
) -> torch.Tensor:
    """Attend with a request over each of the first pages, into rows of a wider tensor."""
    rows = torch.full((len(q), 6 * 16 + 5), 7.0, dtype=q.dtype)
    out = rows[:, : 6 * 16].view(len(q), 6, 16)
    lengths = torch.tensor(start, dtype=kind), torch.tensor(context, dtype=kind)
    table = torch.arange(len(context), dtype=torch.int32)[:, None]
    attend(q, HEADS, Rule(32**-0.5), pages, *lengths, table, out)
    assert (rows[:, 6 * 16 :] == 7).all()
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_stand_apart_and_lengths_have_either_width(dtype: torch.dtype) -> None:
    pages, wide = pages_of(dtype), torch.randn(8, 400).to(dtype)
    q = wide[:, : 6 * 32].view(8, 6, 32)
    apart = attended(pages, q, [0, 1, 8], [4, 3], torch.int64)
    assert torch.equal(apart, attended(pages, q.contiguous(), [0, 1, 8], [4, 3], torch.int32))


def test_a_request_without_tokens_takes_no_part() -> None:
    pages, q = pages_of(torch.float32), torch.randn(2, 6, 32)
    both = attended(pages, q, [0, 1, 1, 2], [4, 9, 3], torch.int64)
    first = attended(pages, q[:1], [0, 1], [4], torch.int64)
    assert torch.equal(both[:1], first)
    assert not both.isnan().any()


def test_no_tokens_at_all_are_no_work() -> None:
    pages = pages_of(torch.float32)
    assert attended(pages, torch.empty(0, 6, 32), [0], [], torch.int64).shape == (0, 6, 16)


def test_one_key_has_all_the_weight() -> None:
    pages, q = pages_of(torch.float32), torch.randn(1, 6, 32)
    out = attended(pages, q, [0, 1], [0], torch.int64)
    assert torch.equal(out[0], pages.values[0, :, 0].repeat_interleave(3, dim=0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [1, 8])
def test_a_key_that_is_not_a_number_is_not_hidden(dtype: torch.dtype, tokens: int) -> None:
    pages, q = pages_of(dtype), torch.randn(tokens, 6, 32).to(dtype)
    assert not attended(pages, q, [0, tokens], [5], torch.int64).isnan().any()
    pages.keys[0, :, 2] = float("nan")
    assert attended(pages, q, [0, tokens], [5], torch.int64).isnan().all()


def test_without_angles_and_norms_everything_is_copied() -> None:
    pages, qkv = pages_of(torch.bfloat16), torch.randn(3, 8 * 32 + 2 * 16).bfloat16()
    page, offset = torch.tensor([3, 3, 8]), torch.tensor([14, 15, 0])
    q = torch.empty(3, 6, 32, dtype=torch.bfloat16)
    rotate(qkv, HEADS, Turn(), torch.zeros(3).long(), pages, page, offset, q)
    assert torch.equal(q.flatten(1), qkv[:, : 6 * 32])
    assert torch.equal(pages.keys[page, :, offset].flatten(1), qkv[:, 6 * 32 : 8 * 32])
    assert torch.equal(pages.values[page, :, offset].flatten(1), qkv[:, 8 * 32 :])


def test_nothing_but_the_written_places_changes() -> None:
    pages, qkv = pages_of(torch.float32), torch.randn(1, 8 * 32 + 2 * 16)
    before = pages.keys.clone()
    one = torch.zeros(1, dtype=torch.int64)
    rotate(qkv, HEADS, Turn(), one, pages, one + 4, one + 2, torch.empty(1, 6, 32))
    assert (pages.keys != before).nonzero()[:, [0, 2]].unique(dim=0).tolist() == [[4, 2]]
