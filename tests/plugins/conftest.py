"""What tests of kernels share: the interpreter mended, and what takes it long."""

from __future__ import annotations

import os
import re

import pytest

TAKES_LONG = re.compile(
    r"rows_do_not_depend_on_each_other"
    r"|it_equals_the_reference\[64\]"
    r"|test_triton\.py.*a_recording_learns_who_shares_what"
    r"|has_the_same_bits_in_any_chunk_and_company\[(window|sinks)"
    r"|Float16::test_a_token_has_the_same_bits_in_any_chunk_and_company"
    r"|a_prefix_of_more_requests_than_a_tile_has"
    r"|test_triton_quantised\.py.*\[int8"
    r"|draws_are_those_of_the_choice_in_torch.*bfloat16"
    r"|Float16::test_shared_prefixes_count_once\[(window|three heads|sinks)"
)
"""Cases that are quick everywhere but in Triton's interpreter, where they are slow."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow here only."""
    for item in items:
        if item.get_closest_marker("interpreted") and TAKES_LONG.search(item.nodeid):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def loops_with_bounds_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let triton 3.6's interpreter count to a number it was given under numpy 2.4 and newer."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
