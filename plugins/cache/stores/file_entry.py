"""The form of a page in a file: a header of 64 bytes, then the page.

    bytes   0  4       6       8           16        32       48       64
            | magic | version | header   | page    | whose  | which  | check | page ...
              4s      u16       u16        u64       16s      16s      16s     little-endian

`whose` is the identity that pages have to share, `which` a hash of the page's digest, and `check`
the first half of a SHA-256 of everything before and behind it: on processors with instructions for
it 2.7 times as fast as BLAKE2b (1.8 and 0.65 GB/s on one core). A file under another page's name,
of another model, or cut short is found out without trusting the file system.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from hashlib import blake2b, sha256
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Sync = Literal["never", "file", "folder"]

FORMAT_VERSION = 1
HEADER_BYTES = 64
_HEAD = struct.Struct("<4sHHQ16s16s")
_CHECK_BYTES = 16
_MAGIC = b"CSKV"


def name_of(digest: bytes) -> bytes:
    """Return 16 bytes that stand for bytes of any length."""
    return blake2b(digest, digest_size=16).digest()


class EntryFormat:
    """Packs and checks the entries of one identity and page size."""

    def __init__(self, identity: bytes, page_bytes: int) -> None:
        self.whose = name_of(identity)
        self.page_bytes = page_bytes
        self.entry_bytes = HEADER_BYTES + page_bytes

    def header(self, digest: bytes, page: memoryview) -> bytes:
        """Return what stands before a page."""
        head = self._head(digest)
        return head + _check(head, page)

    def fault(self, header: memoryview, digest: bytes, page: memoryview) -> str:
        """Return what is wrong with an entry: `foreign`, `damaged` or nothing."""
        head = bytes(header[: _HEAD.size])
        if _check(head, page) != header[_HEAD.size :]:
            return "damaged"
        # Sound, but written for something else: another model, page or version of this format.
        return "" if head == self._head(digest) else "foreign"

    def _head(self, digest: bytes) -> bytes:
        return _HEAD.pack(
            _MAGIC, FORMAT_VERSION, HEADER_BYTES, self.page_bytes, self.whose, name_of(digest)
        )


def _check(head: bytes, page: memoryview) -> bytes:
    hashed = sha256(head)
    hashed.update(page)
    return hashed.digest()[:_CHECK_BYTES]


def write_entry(path: Path, temporary: Path, parts: Sequence[memoryview], sync: Sync) -> None:
    """Write a file so that under its name it is whole or not there.

    Args:
        path: The file.
        temporary: A name that nobody else uses, in the same folder; it does not outlive the call.
        parts: What to write.
        sync: What must be on the device before it returns: nothing, the file, or also its name.

    Raises:
        OSError: It is not written.
    """
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _whole(lambda rest: os.writev(file, rest), parts)
            if sync != "never":
                os.fsync(file)
            os.rename(temporary, path)
        finally:
            os.close(file)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync == "folder":
        _sync_folder(path.parent)


def read_entry(path: Path, parts: Sequence[memoryview]) -> bool:
    """Fill `parts` from a file and note that it was used; return whether it is as long as they are.

    Raises:
        OSError: It cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.fstat(file).st_size != sum(len(part) for part in parts):
            return False
        whole = _whole(lambda rest: os.readv(file, rest), parts)
        with suppress(OSError):
            os.utime(file)
        return whole
    finally:
        os.close(file)


def _whole(move: Callable[[Sequence[memoryview]], int], parts: Sequence[memoryview]) -> bool:
    """Repeat a system call until all parts were moved; False if it moves nothing any more."""
    rest = [part for part in parts if len(part)]
    while rest:
        moved = move(rest)
        if not moved:
            return False
        while rest and moved >= len(rest[0]):
            moved -= len(rest.pop(0))
        if rest:
            rest[0] = rest[0][moved:]
    return True


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
