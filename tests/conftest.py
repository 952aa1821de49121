"""Fixtures for the whole tree."""

from __future__ import annotations

import pytest

# the contract classes assert; pytest explains a failed assert only in modules that it rewrites
pytest.register_assert_rewrite("camshaft.testing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need an accelerator where there is none; only then torch is imported."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="no accelerator here"))
