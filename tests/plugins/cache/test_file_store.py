from __future__ import annotations

import errno
import logging
import os
import time
from hashlib import sha256
from unittest.mock import Mock

import pytest

from camshaft.contracts.kv_store import StoreSpec
from camshaft.errors import CamshaftError
from camshaft.plugins.cache.components import FilesSettings
from camshaft.plugins.cache.stores import file_entry
from camshaft.plugins.cache.stores.files import FileStore
from camshaft.testing.kv_store import PAGE, content, digest, fetched, put
from tests.plugins.cache.stores import ENTRY, Clock, FailingDisk, files, names


@pytest.fixture
def filled(tmp_path):
    """A store that was filled with a, b and c."""
    store = files(tmp_path)
    for name in "abc":
        assert put(store, name)
    yield store
    store.close()


def flip(path, other):
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 0x10
    path.write_bytes(whole)


def flip_in_header(path, other):
    whole = bytearray(path.read_bytes())
    whole[9] ^= 1
    path.write_bytes(whole)


def halve(path, other):
    os.truncate(path, ENTRY // 2)


def empty(path, other):
    os.truncate(path, 0)


def lengthen(path, other):
    os.truncate(path, ENTRY + 1)


def remove(path, other):
    path.unlink()


def make_a_folder_of_it(path, other):
    path.unlink()
    path.mkdir()


def swap(path, other):
    path.write_bytes(other.read_bytes())


HARM = [flip, flip_in_header, halve, empty, lengthen, remove, make_a_folder_of_it, swap]


@pytest.mark.parametrize("harm", HARM)
def test_TIR_01_a_harmed_file_is_a_miss_and_harms_no_other(filled, harm):
    harm(filled.folder.page(digest("a")), filled.folder.page(digest("b")))
    assert fetched(filled, "a") is None
    assert filled.contains([digest("a")]) == 0
    assert fetched(filled, "b") == content("b")
    assert fetched(filled, "c") == content("c")


@pytest.mark.parametrize("harm", HARM)
def test_TIR_01_a_file_that_was_harmed_between_runs_is_a_miss(filled, tmp_path, harm):
    harm(filled.folder.page(digest("a")), filled.folder.page(digest("b")))
    filled.close()
    again = files(tmp_path)
    assert fetched(again, "a") is None
    assert fetched(again, "b") == content("b")
    assert put(again, "a") is (harm is not make_a_folder_of_it)
    again.close()


@pytest.mark.parametrize("harm", [flip, halve, swap])
def test_TIR_01_what_is_damaged_is_removed_counted_and_told_once(filled, caplog, harm):
    for name in "ab":
        harm(filled.folder.page(digest(name)), filled.folder.page(digest("c")))
    with caplog.at_level(logging.WARNING):
        assert [fetched(filled, name) for name in "abab"] == [None] * 4
    assert len(names(filled.folder.path)) == 1
    counts = filled.counters()
    assert counts["damaged"] + counts["foreign"] == 2
    assert counts["misses"] == 4
    assert len(caplog.records) == 1


def test_TIR_01_a_page_of_another_model_is_foreign(filled, tmp_path):
    other = files(tmp_path / "other", identity=b"other weights, same shape")
    put(other, "a")
    filled.folder.page(digest("a")).write_bytes(other.folder.page(digest("a")).read_bytes())
    other.close()
    assert fetched(filled, "a") is None
    assert filled.counters()["foreign"] == 1


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO])
def test_TIR_01_a_file_that_cannot_be_read_is_a_miss(filled, monkeypatch, error):
    def refuse(*arguments):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "readv", refuse)
    assert fetched(filled, "a") is None
    monkeypatch.undo()
    assert filled.counters()["read_errors"] == 1
    assert fetched(filled, "a") is None
    assert fetched(filled, "b") == content("b")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_TIR_02_a_disk_that_takes_no_more_fails_nothing(filled, monkeypatch, caplog, error):
    disk = FailingDisk(monkeypatch, error)
    clock = filled.pause.now = Clock()
    for name in range(50):
        assert not put(filled, name)
    assert disk.calls <= 4, "after a failure the disk is left alone"
    clock.now_s += 1.1
    assert not put(filled, "later")
    assert disk.calls <= 8
    assert not [name for name in names(filled.folder.path) if name.endswith(".part")]
    assert filled.counters()["refused"] == 49
    assert filled.counters()["write_errors"] == 2
    assert len(caplog.records) == 1


def test_TIR_02_writes_resume_when_there_is_space_again(filled, monkeypatch):
    FailingDisk(monkeypatch, errno.ENOSPC)
    clock = filled.pause.now = Clock()
    assert not put(filled, "d")
    monkeypatch.undo()
    assert not put(filled, "d")
    clock.now_s += 1.1
    assert put(filled, "d")
    assert put(filled, "e")


def test_TIR_02_on_a_full_disk_old_pages_make_room(filled, monkeypatch):
    FailingDisk(monkeypatch, errno.ENOSPC, times=1)
    assert put(filled, "d")
    assert fetched(filled, "d") == content("d")
    assert names(filled.folder.path) == [f"{digest('d').hex()}.page"]
    assert filled.counters()["evicted"] == 3


def test_TIR_02_pages_that_are_there_are_served_while_writes_pause(filled, monkeypatch):
    FailingDisk(monkeypatch, errno.EIO)
    assert not put(filled, "d")
    assert put(filled, "a")
    assert fetched(filled, "a") == content("a")


def test_pauses_become_longer_and_end_with_a_success(filled, monkeypatch):
    clock = filled.pause.now = Clock()
    disk = FailingDisk(monkeypatch, errno.EIO, times=3)
    for wait_s in (1.0, 2.0, 4.0):
        assert not put(filled, "d")
        clock.now_s += wait_s - 0.01
        assert not put(filled, "d")
        clock.now_s += 0.02
    assert put(filled, "d")
    disk.times = 1
    assert not put(filled, "e")
    clock.now_s += 1.01
    assert put(filled, "e")


def test_TIR_03_pages_survive_a_restart(filled, tmp_path):
    filled.close()
    again = files(tmp_path)
    assert again.contains([digest(name) for name in "abc"]) == 3
    assert again.used_bytes() == 3 * ENTRY
    assert fetched(again, "c") == content("c")
    again.close()


@pytest.mark.parametrize("other", [{"identity": b"bfloat16"}, {"page_bytes": 2 * PAGE}])
def test_TIR_03_another_engine_finds_nothing(filled, tmp_path, other):
    filled.close()
    size = other.get("page_bytes", PAGE)
    again = files(tmp_path, **other)
    assert again.contains([digest("a")]) == 0
    assert fetched(again, "a", size) is None
    again.close()


def test_TIR_03_pages_of_another_model_are_removed(filled, tmp_path):
    filled.close()
    again = files(tmp_path, identity=b"other")
    assert names(tmp_path) == []
    assert again.counters()["foreign"] == 3
    again.close()


def test_TIR_03_pages_of_another_model_stay_while_it_runs(filled, tmp_path):
    again = files(tmp_path, identity=b"other")
    assert again.counters()["foreign"] == 0
    assert fetched(filled, "a") == content("a")
    again.close()


def test_TIR_03_what_a_killed_engine_left_half_written_is_swept_away(filled, tmp_path):
    half = filled.folder.path / f"{digest('d').hex()}.{os.getpid()}-77.part"
    half.write_bytes(bytes(ENTRY // 2))
    filled.close()
    again = files(tmp_path)
    assert half.exists(), "its writer may be alive"
    os.utime(half, (0, time.time() - 61))
    again._look()
    assert not half.exists()
    assert fetched(again, "d") is None
    assert again.used_bytes() == 3 * ENTRY
    again.close()


def test_TIR_03_what_another_engine_is_writing_stays(filled, tmp_path, monkeypatch):
    seen = []
    rename = os.rename

    def look_first(source, target):
        files(tmp_path).close()
        seen.append(source.exists())
        rename(source, target)

    monkeypatch.setattr(os, "rename", look_first)
    assert put(filled, "d")
    assert seen == [True]


def test_TIR_03_two_engines_may_share_a_directory(filled, tmp_path):
    other = files(tmp_path)
    assert fetched(other, "a") == content("a")
    other.discard(digest("a"))
    assert fetched(filled, "a") is None
    assert put(filled, "a")
    assert fetched(filled, "a") == content("a")
    assert put(other, "z")
    filled._look()
    assert fetched(filled, "z") == content("z")
    other.close()


def test_a_page_is_hashed_once_when_it_is_read(filled, monkeypatch):
    hashes = Mock(wraps=sha256)
    monkeypatch.setattr(file_entry, "sha256", hashes)
    assert fetched(filled, "b")
    assert hashes.call_count == 1


def test_a_page_that_somebody_removed_is_written_again(filled):
    filled.folder.page(digest("a")).unlink()
    assert put(filled, "a")
    assert fetched(filled, "a") == content("a")


def test_a_directory_that_somebody_removed_is_made_again(filled):
    for path in filled.folder.path.iterdir():
        path.unlink()
    filled.folder.path.rmdir()
    assert fetched(filled, "a") is None
    assert put(filled, "d")
    assert fetched(filled, "d") == content("d")


def test_the_page_that_went_unused_for_longest_goes_first(tmp_path):
    store = files(tmp_path, pages=3)
    for name in "abc":
        put(store, name)
    fetched(store, "a")
    put(store, "d")
    assert [store.contains([digest(name)]) for name in "abcd"] == [1, 0, 1, 1]
    assert len(names(tmp_path)) == 3
    store.close()


def test_the_order_of_use_survives_a_restart(filled, tmp_path):
    for age, name in enumerate("abc"):
        os.utime(filled.folder.page(digest(name)), (0, 100 - age))
    fetched(filled, "c")
    filled.close()
    again = files(tmp_path, pages=2)
    assert [again.contains([digest(name)]) for name in "abc"] == [1, 0, 1]
    assert len(names(tmp_path)) == 2
    again.close()


def test_other_peoples_files_are_left_alone(tmp_path):
    (tmp_path / "pages-v1-notes").mkdir()
    (tmp_path / "pages-v1-notes" / "a.page").write_text("mine")
    (tmp_path / "letter.page").write_text("mine")
    files(tmp_path).close()
    assert names(tmp_path) == ["a.page", "letter.page"]


def test_pages_are_for_this_user_alone(filled):
    assert filled.folder.path.stat().st_mode & 0o777 == 0o700
    assert filled.folder.page(digest("a")).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("sync", ["file", "folder"])
def test_what_was_synced_comes_back(tmp_path, monkeypatch, sync):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append(os.readlink(f"/proc/self/fd/{file}"))
    )
    store = files(tmp_path)
    store.settings = store.settings.model_copy(update={"sync": sync})
    assert put(store, "a")
    assert fetched(store, "a") == content("a")
    assert synced[0].endswith(".part")
    assert synced[1:] == ([str(store.folder.path)] if sync == "folder" else [])
    store.close()


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CamshaftError, match="file/pages' is of no use for pages: Not a directory"):
        files(tmp_path / "file" / "pages")


def test_a_capacity_below_a_page_is_refused(tmp_path):
    with pytest.raises(CamshaftError, match="holds no page, which takes 4160"):
        FileStore(FilesSettings(directory=tmp_path, capacity=4159), StoreSpec(PAGE))
