from __future__ import annotations

import torch

from benchmarks.kv_quant import Reading, forms, loss


def test_forms_are_those_that_are_installed() -> None:
    assert {"fp8", "int8", "int4"} <= set(forms([]))
    assert "none" not in forms([])
    assert forms(["int8", "none"]) == ["int8"]


def test_a_reading_loses_nothing_against_itself() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    one = Reading(torch.tensor([1, 2, 3]), logits)
    found = loss(one, one)
    assert found["kl_mean", "nat"] == 0
    assert found["perplexity", "1"] == found["perplexity_of_reference", "1"]
