"""Files mapped into memory, so that only the pages that are read are loaded."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


_POINTER = b"version https://git-lfs"


def map_file(path: Path) -> mmap.mmap:
    """Map a file copy-on-write: arrays on it are writable, the file never changes.

    Raises:
        CheckpointError: The file is missing, unreadable, empty, or a pointer of Git LFS.
    """
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError:  # what mmap says about a file of 0 bytes
        raise CheckpointError(f"{path}: the file is empty. Fetch it again.") from None
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}.") from None
    if mapped[: len(_POINTER)] == _POINTER:
        raise CheckpointError(
            f"{path}: only a pointer of Git LFS, not the file itself. Run `git lfs pull` there."
        )
    return mapped


def give_back(data: NDArray[np.generic]) -> None:
    """Let the system have the memory of an array that was copied, if it is part of a mapped file.

    Whoever reads it again reads the file again. It must not have been written to: that is lost.
    """
    base: Any = data
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    if isinstance(base, mmap.mmap):
        forget(data.ctypes.data, data.nbytes)


def forget(address: int, size: int) -> range:
    """Give whole pages of memory back to the system.

    They are read again from their file, or are zero where they belong to none, and take no room
    until then.

    Returns:
        The bytes behind `address` for which that was done; none where the system cannot.
    """
    first = -address % mmap.PAGESIZE
    last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - address
    if sys.platform != "linux" or last <= first:
        return range(0)
    region = ctypes.c_void_p(address + first), ctypes.c_size_t(last - first)
    done = ctypes.CDLL(None).madvise(*region, mmap.MADV_DONTNEED) == 0
    return range(first, last) if done else range(0)
