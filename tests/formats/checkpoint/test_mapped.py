"""Files that are mapped into memory."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from camshaft.checkpoint.mapped import give_back, map_file

SIZE = 2**20


def resident_kib(path: Path) -> int:
    """Return how much of a mapped file is in this process."""
    text = Path("/proc/self/smaps").read_text(encoding="utf-8")
    return int(re.findall(r"Rss:\s+(\d+)", text[text.index(str(path)) :])[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(np.arange(SIZE, dtype=np.uint32).astype(np.uint8).tobytes())
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system is not told")
def test_what_was_copied_is_given_back_and_can_be_read_again(path: Path) -> None:
    everything = np.frombuffer(map_file(path), np.uint8)
    part = everything[5000:-5000].reshape(2, -1)
    before = part.copy()
    assert resident_kib(path) > 900
    give_back(part[:1])
    assert 400 < resident_kib(path) < 600
    give_back(part)
    assert resident_kib(path) < 100
    assert np.array_equal(part, before)


def test_an_array_that_is_of_no_file_stays_as_it_is() -> None:
    own = np.ones(SIZE, np.uint8)
    give_back(own[100:])
    assert own.all()
