"""Stores for tests, and what breaks them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from camshaft.contracts.kv_store import StoreSpec
from camshaft.plugins.cache.components import FilesSettings
from camshaft.plugins.cache.stores.files import FileStore
from camshaft.testing.kv_store import PAGE

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

ENTRY = PAGE + 64


def files(
    directory: Path, pages: int = 8, *, identity: bytes = b"model", page_bytes: int = PAGE
) -> FileStore:
    settings = FilesSettings(directory=directory, capacity=pages * (page_bytes + 64))
    return FileStore(settings, StoreSpec(page_bytes, identity))


def names(directory: Path) -> list[str]:
    return sorted(one.name for one in directory.rglob("*") if one.is_file() and one.name != "lock")


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FailingDisk:
    """Lets writes to files fail half-way, as often as it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: int, times: int = 10**6) -> None:
        self.error, self.times, self.calls = error, times, 0
        self._writev = os.writev
        monkeypatch.setattr(os, "writev", self.writev)

    def writev(self, file, parts):
        self.calls += 1
        if self.times <= 0:
            return self._writev(file, parts)
        if len(parts) > 1:  # the first half arrives
            return self._writev(file, [parts[0], parts[1][: len(parts[1]) // 2]])
        self.times -= 1
        raise OSError(self.error, os.strerror(self.error))
