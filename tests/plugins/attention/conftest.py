"""What tests of kernels share: the interpreter mended, and compilers for absent devices."""

from __future__ import annotations

import os
from typing import Any

import pytest

interpreted = os.environ.get("TRITON_INTERPRET") == "1"


class Absent:
    """A driver without a device; its number keeps compiled kernels apart from real ones."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_device(self) -> str:
        return f"absent {self.target.arch}"

    def get_current_stream(self, device: object = None) -> int:
        return 0

    def get_current_target(self) -> Any:
        return self.target


@pytest.fixture(
    params=[("cuda", 90, 32, 227 << 10), ("hip", "gfx942", 64, 64 << 10)], ids=["sm_90", "gfx942"]
)
def shared_bytes(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, int], int]:
    """Compile instead of launching; give each kernel's shared memory, and the device's."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    *target, limit = request.param
    found: dict[str, int] = {}
    run = JITFunction.run

    def compiled(self: Any, *args: Any, **named: Any) -> Any:  # the kernel's own arguments
        kernel = run(self, *args, **{**named, "warmup": True})
        found[self.fn.__name__] = kernel.metadata.shared
        return kernel

    monkeypatch.setattr(JITFunction, "run", compiled)
    monkeypatch.setattr(triton.runtime.driver, "_active", Absent(GPUTarget(*target)))
    return found, limit


@pytest.fixture
def loops_with_bounds_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let triton 3.6's interpreter count to a loaded number under numpy 2.4 and newer."""
    if not interpreted:
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
