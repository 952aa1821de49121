"""An AMD accelerator: torch's HIP build speaks the same API, and knows other facts."""

from __future__ import annotations

from typing import Any

from .cuda import CudaBackend

_FP8 = ("gfx942", "gfx950", "gfx12")


class RocmBackend(CudaBackend):
    """The code path of `cuda`. It was not run on such a device by this project yet."""

    kind = "rocm"

    def architecture(self, found: Any) -> str:  # noqa: ANN401
        """Return the instruction set, such as `gfx942`."""
        return str(found.gcnArchName).split(":", 1)[0]

    def has_fp8(self, found: Any) -> bool:  # noqa: ANN401
        """Return whether matrix units take an 8-bit float."""
        return self.architecture(found).startswith(_FP8)
