"""Pages in files under a directory, which outlive the engine.

The file system is asked for little and trusted with nothing. A page is written under another name
and renamed, so a name stands for a whole page; what is read is checked against a hash, so a name
that lies is a miss. The index of names lives in memory, in the order of last use, which the files
keep as their time of modification: a new engine finds it there. Several engines may share a
directory: from time to time each looks what the others did. A file that another one removed is a
miss like any other.

Whatever fails while pages are read and written is counted, and warned of once a minute: a write
that fails is not made, and after it none is tried for a while. When the device is full though the
bound is not reached, the oldest pages make room for the new one.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from camshaft.contracts.kv_store import KVStore
from camshaft.errors import CamshaftError

from .counts import Pause, StoreCounts
from .file_entry import HEADER_BYTES, EntryFormat, read_entry, write_entry
from .file_folder import StoreFolder
from .index import StoreIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.kv_store import StoreSpec

    from ..components import FilesSettings

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SHED_PAGES = 4
"""Pages removed for a new one when the device is full: one may not be enough."""
_LOOK_SHARE = 1 / 16
"""Share of the bound that is written before the directory is read again."""
_LOOK_AFTER_S = 30.0
_LOOK_COST = 20
"""Reading the directory takes at most this part of the time."""
COUNTERS = (
    "hits",
    "misses",
    "stored",
    "refused",
    "evicted",
    "discarded",
    "damaged",
    "foreign",
    "read_errors",
    "write_errors",
    "read_bytes",
    "written_bytes",
    "read_s",
    "write_s",
)


class FileStore(KVStore):
    """See the module.

    Bytes are those of files, headers included. Processes that share a directory may together exceed
    the bound by a sixteenth of it for each beyond the first.
    """

    def __init__(self, settings: FilesSettings, spec: StoreSpec) -> None:
        """Open the directory and find what lies in it.

        Raises:
            CamshaftError: It cannot be used, or the bound is less than a page.
        """
        self.entry = EntryFormat(spec.identity, spec.page_bytes)
        most = settings.capacity // self.entry.entry_bytes
        if most < 1:
            raise CamshaftError(
                f"a capacity of {settings.capacity} bytes holds no page, which takes "
                f"{self.entry.entry_bytes}; raise the capacity of the store in "
                f"'{settings.directory}'"
            )
        self.settings = settings
        self.folder = StoreFolder(settings.directory.expanduser(), self.entry)
        self.counts = StoreCounts(f"kv_store 'files' in '{settings.directory}'", COUNTERS)
        self.counts.add(foreign=self.folder.foreign)
        self.pause = Pause()
        self._index: StoreIndex[int] = StoreIndex(most)
        self._unwanted: set[bytes] = set()
        self._round = 0
        self._written = 0
        self._look_at_s = 0.0
        self._looking = threading.Lock()
        self._look()

    def contains(self, digests: Sequence[bytes]) -> int:
        """See `KVStore.contains`."""
        return self._index.leading(digests)

    def put(self, digest: bytes, page: memoryview) -> bool:
        """See `KVStore.put`. A page that is held is not written again, but is now the newest."""
        page = self._checked(page)
        if self._index.use(digest) is not None and self._still_there(digest):
            return True
        if self.pause:
            self.counts.add(refused=1)
            return False
        self._look_when_due()
        victims = self._index.reserve()
        if victims is None:
            self.counts.add(refused=1)
            return False
        self._remove(victims)
        try:
            self._write(digest, page)
        except OSError as error:
            self._index.cancel()
            self.pause.failed()
            self.counts.fault("write_errors", f"a page was not written: {error}")
            return False
        except BaseException:
            self._index.cancel()
            raise
        self._index.add(digest, self._round)
        self._unwanted.discard(digest)
        self.pause.worked()
        return True

    def get(self, digest: bytes, into: memoryview) -> bool:
        """See `KVStore.get`."""
        into = self._checked(into)
        if self._index.use(digest) is None:
            self.counts.add(misses=1)
            return False
        began = time.perf_counter()
        fault = self._read(digest, into)
        if fault:
            self._index.drop(digest)
            self.counts.add(misses=1)
            return False
        took = time.perf_counter() - began
        self.counts.add(hits=1, read_bytes=len(into), read_s=took)
        return True

    def discard(self, digest: bytes) -> None:
        """See `KVStore.discard`."""
        if self._index.drop(digest) is not None:
            self.counts.add(discarded=1)
        self._unwanted.add(digest)  # or it would be found again when the directory is read
        self._remove_unwanted()

    def digests(self) -> list[bytes]:
        """See `KVStore.digests`."""
        return self._index.digests()

    def used_bytes(self) -> int:
        """See `KVStore.used_bytes`."""
        return len(self._index) * self.entry.entry_bytes

    def counters(self) -> dict[str, float]:
        """See `KVStore.counters`."""
        return self.counts.all()

    def close(self) -> None:
        """See `KVStore.close`. The pages stay."""
        self.folder.close()

    def _checked(self, page: memoryview) -> memoryview:
        if page.nbytes != self.entry.page_bytes:
            raise ValueError(f"a page has {self.entry.page_bytes} bytes, this one {page.nbytes}")
        return page.cast("B")

    def _still_there(self, digest: bytes) -> bool:
        """Note the use of a file; False if somebody removed it."""
        try:
            os.utime(self.folder.page(digest))
        except OSError:
            self._index.drop(digest)
            return False
        return True

    def _write(self, digest: bytes, page: memoryview) -> None:
        """Write a page.

        Raises:
            OSError: The disk does not take it, even after room was made.
        """
        began = time.perf_counter()
        parts = [memoryview(self.entry.header(digest, page)), page]
        name, sync = self.folder.page(digest), self.settings.sync
        try:
            write_entry(name, self.folder.part(digest), parts, sync)
        except OSError as error:
            if error.errno in _FULL:
                self._remove(self._index.shed(_SHED_PAGES))
            elif error.errno == errno.ENOENT:
                self.folder.make()
            else:
                raise
            write_entry(name, self.folder.part(digest), parts, sync)
        took = time.perf_counter() - began
        self._written += self.entry.entry_bytes
        self.counts.add(stored=1, written_bytes=len(page), write_s=took)

    def _read(self, digest: bytes, into: memoryview) -> str:
        """Fill `into`; return the name of what is wrong with the file, which is then gone."""
        name, header = self.folder.page(digest), memoryview(bytearray(HEADER_BYTES))
        try:
            whole = read_entry(name, [header, into])
        except FileNotFoundError:
            return "missing"
        except OSError as error:
            self.counts.fault("read_errors", f"a page was not read: {error}")
            fault = "unreadable"
        else:
            fault = self.entry.fault(header, digest, into) if whole else "damaged"
            if not fault:
                return ""
            self.counts.fault(fault, f"a page is {fault} and was removed: {name.name}")
        with suppress(OSError):
            os.unlink(name)
        return fault

    def _remove(self, victims: Sequence[tuple[bytes, int]]) -> None:
        for digest, _ in victims:
            with suppress(OSError):  # what stays is found when the directory is read again
                os.unlink(self.folder.page(digest))
        if victims:
            self.counts.add(evicted=len(victims))

    def _remove_unwanted(self) -> None:
        for digest in list(self._unwanted):
            try:
                os.unlink(self.folder.page(digest))
            except FileNotFoundError:
                pass
            except OSError as error:
                self.counts.fault("write_errors", f"a page was not removed: {error}")
                continue
            self._unwanted.discard(digest)

    def _look_when_due(self) -> None:
        """Read the directory again if much was written or a while has passed."""
        share = _LOOK_SHARE * self._index.most * self.entry.entry_bytes
        if time.monotonic() < self._look_at_s and self._written < share:
            return
        if self._looking.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._looking.release()

    def _look(self) -> None:
        """Make the index what the directory is; pages that are written meanwhile stay in it."""
        began = time.monotonic()
        self._written = 0
        self._round += 1
        self._remove_unwanted()
        try:
            found = self.folder.scan()
        except OSError as error:
            self.counts.fault("read_errors", f"the directory was not read: {error}")
        else:
            pages = [(one.digest, 0) for one in found if one.digest not in self._unwanted]
            self._index.restore(pages, kept=self._round)
            self._remove(self._index.shed(len(self._index) - self._index.most))
        took = time.monotonic() - began
        self._look_at_s = began + max(_LOOK_AFTER_S, _LOOK_COST * took)
