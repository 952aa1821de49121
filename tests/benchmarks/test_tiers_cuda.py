"""The benchmark of tiers on a device, on a toy: what it measures, not how much that is."""

from __future__ import annotations

from benchmarks.tiers_cuda import SETTINGS, Asked, measure
from camshaft import open_recipe
from camshaft.compose import compose


def test_each_way_to_a_document_and_back_is_measured() -> None:
    one = compose(open_recipe("recipes/toy.yaml", SETTINGS))
    found = measure(one, Asked("recipes/toy.yaml", 40, 2, ()))
    one.engine.close()
    assert list(found) == [
        ("pages", "export_gb_s", "GB/s"),
        ("pages", "load_gb_s", "GB/s"),
        ("document 40, recompute", "ttft_ms", "ms"),
        ("document 40, device", "ttft_ms", "ms"),
        ("document 40, host memory", "ttft_ms", "ms"),
        ("resume 40, swap", "resume_ms", "ms"),
        ("resume 40, recompute", "resume_ms", "ms"),
    ]
    assert all(len(values) == 2 and min(values) > 0 for values in found.values())
