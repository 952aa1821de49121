"""What tests of kernels share: the interpreter mended."""

from __future__ import annotations

import os

import pytest


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
