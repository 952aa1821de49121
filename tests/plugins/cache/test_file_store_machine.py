"""Random calls, faults, harm and restarts: a file store never gives a wrong page or outgrows."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from camshaft.testing.kv_store import content, digest, fetched, put
from tests.plugins.cache.stores import ENTRY, Clock, files

PAGES = 5
NAMES = st.integers(0, 8)


class FileStoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.faults: dict[str, int] = {}
        self.real: dict[str, Any] = {
            name: getattr(os, name) for name in ("writev", "readv", "rename", "unlink", "utime")
        }
        for name in self.real:
            setattr(os, name, self.faulty(name))
        self.clock = Clock()
        self.open()

    def faulty(self, name):
        def call(*given, **more):
            if name in self.faults:
                raise OSError(self.faults[name], "injected")
            return self.real[name](*given, **more)

        return call

    def open(self) -> None:
        self.store = files(self.directory, PAGES)
        self.store.pause.now = self.clock

    def teardown(self) -> None:
        for name, call in self.real.items():
            setattr(os, name, call)
        self.store.close()
        shutil.rmtree(self.directory)

    @rule(name=NAMES)
    def put(self, name):
        if put(self.store, name) and not self.faults.keys() & {"readv", "utime"}:
            assert self.store.contains([digest(name)]) == 1

    @rule(name=NAMES)
    def get(self, name):
        assert fetched(self.store, name) in {None, content(name)}
        self.clock.now_s += 0.4

    @rule(name=NAMES)
    def discard(self, name):
        self.store.discard(digest(name))
        assert fetched(self.store, name) is None
        self.store._look()
        assert fetched(self.store, name) is None

    @rule(name=NAMES, other=NAMES, how=st.sampled_from(["flip", "cut", "swap", "remove"]))
    def harm(self, name, other, how):
        path = self.store.folder.page(digest(name))
        if not path.exists():
            return
        if how == "flip":
            path.write_bytes(path.read_bytes()[:-1] + b"!")
        elif how == "cut":
            os.truncate(path, 100)
        elif how == "swap" and self.store.folder.page(digest(other)).exists():
            path.write_bytes(self.store.folder.page(digest(other)).read_bytes())
        else:
            self.real["unlink"](path)

    @rule(
        call=st.sampled_from(["writev", "readv", "rename", "unlink", "utime"]),
        error=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EACCES, errno.ENOENT]),
    )
    def fail(self, call, error):
        lies = call == "unlink" and error == errno.ENOENT  # it would say that a file is gone
        self.faults = {} if lies else {call: error}

    @rule()
    def recover(self):
        self.faults = {}
        self.clock.now_s += 100

    @rule()
    def look(self):
        self.store._look()

    @rule()
    def restart(self):
        self.store.close()
        self.open()

    @invariant()
    def it_counts_no_more_than_it_may(self):
        assert self.store.used_bytes() <= PAGES * ENTRY

    @invariant()
    def all_that_lies_there_is_counted_while_files_can_be_removed(self):
        if self.faults:
            return
        for part in self.store.folder.path.glob("*.part"):
            os.utime(part, (0, 0))
        self.store._look()
        found = list(self.store.folder.path.iterdir())
        assert all(path.suffix == ".page" for path in found)
        assert len(found) * ENTRY == self.store.used_bytes()


TestFileStoreMachine = FileStoreMachine.TestCase
TestFileStoreMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
