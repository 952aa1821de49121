"""Files mapped into memory, so that only the pages that are read are loaded."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from camshaft.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


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
