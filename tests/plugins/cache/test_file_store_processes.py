from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from camshaft.testing.kv_store import content, fetched, put
from tests.plugins.cache.stores import ENTRY, files, names

PAGES = 12
CHILD = """
import itertools, sys
from pathlib import Path
from camshaft.testing.kv_store import content, fetched, put
from tests.plugins.cache.stores import files

store = files(Path(sys.argv[1]), pages=12)
for number in itertools.count():
    put(store, number % 30)
    assert fetched(store, (number * 7) % 30) in {None, content((number * 7) % 30)}
    if number == 20:
        print("writing", flush=True)
"""


@pytest.fixture
def writer(tmp_path):
    """Another process that fills the directory until it is killed."""
    command = [sys.executable, "-c", CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "writing\n"
            yield child
        finally:
            child.kill()


def test_TIR_03_processes_that_share_a_directory_see_only_whole_pages(writer, tmp_path):
    store, chance = files(tmp_path, PAGES), random.Random(0)
    hits = 0
    for _ in range(400):
        name = chance.randrange(30)
        if chance.random() < 0.3:
            put(store, name)
        found = fetched(store, name)
        assert found in {None, content(name)}
        hits += found is not None
    assert writer.poll() is None
    assert hits > 20
    assert store.counters()["damaged"] == store.counters()["write_errors"] == 0
    store.close()


def test_TIR_03_what_a_killed_process_leaves_is_whole_or_nothing(writer, tmp_path):
    writer.kill()
    writer.wait()
    for part in tmp_path.rglob("*.part"):
        os.utime(part, (0, 0))
    store = files(tmp_path, PAGES)
    pages = [name for name in range(30) if fetched(store, name)]
    assert 1 <= len(pages) <= PAGES
    assert all(fetched(store, name) == content(name) for name in pages)
    assert all(name.endswith(".page") for name in names(tmp_path))
    assert store.counters()["damaged"] == 0
    assert store.used_bytes() <= PAGES * ENTRY
    store.close()
