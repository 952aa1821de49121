"""What tests of kernels share: compilers for absent devices."""

from __future__ import annotations

from typing import Any

import pytest


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
def hopper_kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Compile for sm_90 instead of launching; list kernels with their names, in order."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    found: list[tuple[str, Any]] = []
    run = JITFunction.run

    def compiled(self: Any, *args: Any, **named: Any) -> Any:
        found.append((self.fn.__name__, run(self, *args, **{**named, "warmup": True})))
        return found[-1][1]

    monkeypatch.setattr(JITFunction, "run", compiled)
    monkeypatch.setattr(triton.runtime.driver, "_active", Absent(GPUTarget("cuda", 90, 32)))
    return found
