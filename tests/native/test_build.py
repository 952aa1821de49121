"""Compiling: when, where to, by which compiler, and what is said when there is none."""

from __future__ import annotations

import logging
import platform
import shutil
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from camshaft.errors import DeviceError
from camshaft.native import build as building
from camshaft.native import library as loading


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, sources that compile at once, and a processor that can run them."""
    sources = tmp_path / "src"
    sources.mkdir()
    (sources / "one.cpp").write_text('extern "C" int camshaft_size() { return 0; }\n')
    monkeypatch.setattr(building, "SOURCES", sources)
    monkeypatch.setattr(building, "reasons_against_running", list)
    monkeypatch.setattr(loading, "reasons_against_running", list)
    monkeypatch.setattr(building, "_flags", lambda: ["-shared", "-fPIC"])
    monkeypatch.setenv("CAMSHAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(loading, "library", loading.library.__wrapped__)
    monkeypatch.setattr(loading, "reasons", loading.reasons.__wrapped__)
    return tmp_path / "cache"


def counting_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for a compiler: write a line for each call, and take half a second."""
    calls, script = folder / "calls", folder / "compiler"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\nsleep 0.5\n'
        'while [ "$1" != -o ]; do shift; done\necho made > "$2"\n'
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    return calls


@pytest.mark.skipif(building.compiler() is None, reason="no C++ compiler")
def test_it_is_compiled_once_and_says_so(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="camshaft"):
        path = building.build()
        assert building.build() == path
    assert path.parent == cache
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert [record.message.partition(" with")[0] for record in caplog.records] == [
        "compiling operations for this processor"
    ]


def test_changed_sources_and_options_make_another_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {building.library_path().name}
    (building.SOURCES / "one.cpp").write_text("int other;\n")
    names.add(building.library_path().name)
    (building.SOURCES / "two.h").write_text("\n")
    names.add(building.library_path().name)
    monkeypatch.setattr(building, "_flags", lambda: ["-O3"])
    names.add(building.library_path().name)
    assert len(names) == 4


def test_two_may_build_at_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counting_compiler(tmp_path, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first, second = (pool.submit(building.build) for _ in range(2))
        assert first.result() == second.result()
    assert len(calls.read_text().splitlines()) == 2
    assert [one.name for one in cache.iterdir()] == [first.result().name]
    assert first.result().read_text() == "made\n"


def test_a_compiler_that_fails_is_told_with_its_command(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(DeviceError, match=r"false could not compile .*the command was: .*one\.cpp"):
        building.build()
    [reason] = loading.reasons()
    assert "could not compile" in reason
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_the_first_message_of_a_compiler_is_shown(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "g++")
    (building.SOURCES / "one.cpp").write_text("#error too old\n")
    with pytest.raises(DeviceError, match="#error too old"):
        building.build()


def test_without_a_compiler_the_cure_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    assert loading.reasons() == (
        "no C++ compiler was found; install g++ or clang++, or name one in CXX",
    )
    assert not loading.expected()


def test_a_library_that_is_there_needs_no_compiler(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    cache.mkdir()
    building.library_path().touch()
    assert loading.expected()
    assert building.build() == building.library_path()


def test_other_processors_say_what_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(building, "processor_flags", lambda: frozenset({"avx512f", "avx512bw"}))
    assert building.reasons_against_running() == [
        "the processor lacks avx512dq, avx512vl, avx512_vnni"
    ]
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "not Linux on aarch64" in building.reasons_against_running()[0]
