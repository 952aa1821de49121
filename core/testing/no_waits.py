"""Finds operations that would make the host wait for an accelerator, on a machine without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WAITING = frozenset(
    {
        "_local_scalar_dense",
        "_unique2",
        "bincount",
        "equal",
        "is_nonzero",
        "masked_select",
        "nonzero",
        "unique_consecutive",
        "unique_dim",
    }
)
"""Operations whose result, or its size, the host has to read from the device."""


class NoWaits(TorchDispatchMode):
    """While entered, such an operation fails an assertion.

    Copies from the device by name (`.cpu()`, `.numpy()`) cannot be told apart on a CPU.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's own
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Look at one operation and run it."""
        name = func.overloadpacket.__name__
        assert name not in WAITING, f"torch's {name} would wait for the device"
        if name in {"index", "index_put", "index_put_"}:
            chosen = [one for one in args[1] if one is not None]
            assert all(one.dtype != torch.bool for one in chosen), (
                "an index of booleans would wait for the device"
            )
        if name == "repeat_interleave":
            assert (
                func._overloadname != "Tensor" or (kwargs or {}).get("output_size") is not None
            ), "repeat_interleave without output_size would wait for the device"
        run: Callable[..., Any] = func
        return run(*args, **(kwargs or {}))
