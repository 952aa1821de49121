"""Fixtures for the whole tree."""

from __future__ import annotations

import os

import pytest

# the contract classes assert; pytest explains a failed assert only in modules that it rewrites
pytest.register_assert_rewrite("camshaft.testing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need an accelerator where there is none; only then torch is imported.

    In one process Triton either interprets kernels or compiles them: it is skipped what does not
    belong in this one.
    """
    interprets = os.environ.get("TRITON_INTERPRET") == "1"
    unfit = ("compiled", "is") if interprets else ("interpreted", "is not")
    for item in items:
        if item.get_closest_marker(unfit[0]):
            item.add_marker(pytest.mark.skip(reason=f"TRITON_INTERPRET=1 {unfit[1]} set"))
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no accelerator here"))
