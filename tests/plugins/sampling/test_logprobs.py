"""Logprobs of a row do not depend on where it stands."""

from __future__ import annotations

import pytest
import torch

from camshaft.plugins.sampling.logprobs import _log_softmax

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("vocab", [7, 1021, 32003, 32004])
def test_equal_rows_of_any_width_have_the_same_bits(vocab: int, device: str) -> None:
    row = (torch.randn(1, vocab) * 4).to(device)
    found = _log_softmax(row.repeat(6, 1))
    assert found.shape == (6, vocab)
    assert all(torch.equal(one, found[0]) for one in found)
    torch.testing.assert_close(found[0], row[0].double().log_softmax(0).float())
