"""The folders of a file store: whose files are whose, and what is swept away.

    DIRECTORY/pages-v1-WHOSE/lock              held, shared, by every process that uses the folder
                            /PAGE_BYTES/DIGEST.page
                                       /DIGEST.PID-NUMBER.part      a file that is being written

Folders of another version or identity go when a store is opened, unless somebody holds their lock.
Names of any other form are somebody else's and never touched.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from camshaft.errors import CamshaftError

from .file_entry import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .file_entry import EntryFormat

_FOLDER = re.compile(r"pages-v\d+-[0-9a-f]{32}")
_PAGE = re.compile(r"((?:[0-9a-f]{2})+)\.page")
_PART = re.compile(r"(?:[0-9a-f]{2})+\.\d+-\d+\.part")
_DEAD_AFTER_S = 60.0
"""A part that did not grow for so long has lost its writer; if not, only its page is not kept."""
_numbers = itertools.count()


class Scanned(NamedTuple):
    """A file as it lies there.

    Attributes:
        used_ns: When it was last written or read.
        digest: Of its page.
    """

    used_ns: int
    digest: bytes


class StoreFolder:
    """The files of one identity and page size."""

    def __init__(self, directory: Path, entry: EntryFormat) -> None:
        """Make or find the folder, take its lock and sweep what is no longer of use.

        Raises:
            CamshaftError: The directory cannot be made or read.
        """
        self._entry_bytes = entry.entry_bytes
        home = directory / f"pages-v{FORMAT_VERSION}-{entry.whose.hex()}"
        self.path = home / str(entry.page_bytes)
        self.foreign = 0
        self._lock = -1
        try:
            self.make()
            os.listdir(self.path)
        except OSError as error:
            raise CamshaftError(
                f"'{directory}' is of no use for pages: {error.strerror or error}. Give the store "
                "a directory that can be made, read and written"
            ) from error
        with suppress(OSError):  # without locks, as on some network drives, nothing can be swept
            self._lock = _held(home / "lock", fcntl.LOCK_SH)
            self._sweep(directory, home)

    def make(self) -> None:
        """Make the folder, for this user alone: pages tell what was asked."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def page(self, digest: bytes) -> Path:
        """Return the file of a page."""
        return self.path / f"{digest.hex()}.page"

    def part(self, digest: bytes) -> Path:
        """Return a name for a page while it is written."""
        return self.path / f"{digest.hex()}.{os.getpid()}-{next(_numbers)}.part"

    def scan(self) -> list[Scanned]:
        """Return the files that may be whole, those used longest ago first; remove the others."""
        found = []
        with os.scandir(self.path) as entries:
            for one in entries:
                match = _PAGE.fullmatch(one.name)
                if match is None:
                    self._remove_dead(one)
                    continue
                with suppress(OSError):  # somebody else removed it
                    stat = one.stat(follow_symlinks=False)
                    if stat.st_size == self._entry_bytes:
                        found.append(Scanned(stat.st_mtime_ns, bytes.fromhex(match[1])))
                    else:
                        os.unlink(one.path)
        return sorted(found)

    def _remove_dead(self, entry: os.DirEntry[str]) -> None:
        """Remove a part that nobody can be writing any more."""
        if _PART.fullmatch(entry.name) is None:
            return
        with suppress(OSError):
            if entry.stat(follow_symlinks=False).st_mtime < time.time() - _DEAD_AFTER_S:
                os.unlink(entry.path)

    def _sweep(self, directory: Path, home: Path) -> None:
        """Remove folders of other versions and identities that nobody uses."""
        for folder in _folders(directory):
            if folder == home:
                continue
            with suppress(OSError):
                lock = _held(folder / "lock", fcntl.LOCK_EX)
                try:
                    self.foreign += sum(1 for _ in folder.rglob("*.page"))
                    shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(lock)

    def close(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _folders(directory: Path) -> Iterator[Path]:
    for name in os.listdir(directory):
        if _FOLDER.fullmatch(name) and not (directory / name).is_symlink():
            yield directory / name


def _held(path: Path, kind: int) -> int:
    """Open and lock a file; return its descriptor.

    Raises:
        OSError: Somebody else holds it, or it cannot be opened.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise
    return file
