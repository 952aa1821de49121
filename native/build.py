"""Compiling the C++ sources, once for each kind of processor and state of the sources.

The library is kept in `$CAMSHAFT_CACHE`, by default `~/.cache/camshaft`, under a name made from all
that it depends on: a change of the sources, the flags or the processor makes another one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from camshaft.errors import DeviceError

SOURCES = Path(__file__).parent / "src"

_NEEDED = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
_OPTIONAL = {"avx512_bf16": "-mavx512bf16"}
_FLAGS = (
    *("-O3", "-std=c++20", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-ffp-contract=off"),
    *("-march=x86-64-v4", "-mavx512vnni"),
)


def cache_folder() -> Path:
    """Return where compiled libraries and measured tables are kept."""
    named = os.environ.get("CAMSHAFT_CACHE")
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(named or f"{home}/camshaft").expanduser()


@cache
def processor_flags() -> frozenset[str]:
    """Return the names of this processor's features, as Linux tells them."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def compiler() -> str | None:
    """Return the C++ compiler: `$CXX`, or what is found."""
    named = os.environ.get("CXX")
    if named:
        return shutil.which(named)
    return shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")


def reasons_against_running() -> list[str]:
    """Return why code compiled from these sources cannot run here."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return [
            f"they are written for Linux on x86-64, not {platform.system()} on {platform.machine()}"
        ]
    lacking = [flag for flag in _NEEDED if flag not in processor_flags()]
    return [f"the processor lacks {', '.join(lacking)}"] if lacking else []


def library_path() -> Path:
    """Return where the library for this processor and these sources is kept."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    digest.update(" ".join(_flags()).encode())
    return cache_folder() / f"native-{digest.hexdigest()[:16]}.so"


def build() -> Path:
    """Compile if that was not done before; return the library's path.

    Raises:
        DeviceError: There is no compiler, or it failed; says what it wrote.
    """
    path = library_path()
    if path.exists():
        return path
    name = compiler()
    if name is None:
        raise DeviceError("no C++ compiler was found; install g++ or clang++, or name one in CXX")
    logging.getLogger("camshaft").warning(
        "compiling operations for this processor with %s, once; `make setup` does it beforehand",
        name,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name  # moved when whole, so that two may build at once
        sources = [str(source) for source in sorted(SOURCES.glob("*.cpp"))]
        command = [name, *_flags(), "-o", str(made), *sources]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            wrote = result.stderr.strip().splitlines() or ["no message"]
            fault = next((line for line in wrote if "error" in line), wrote[0])
            raise DeviceError(
                f"{name} could not compile {SOURCES}: {fault}; the command was: {' '.join(command)}"
            )
        made.replace(path)
    return path


def _flags() -> list[str]:
    found = processor_flags()
    return [*_FLAGS, *(option for flag, option in _OPTIONAL.items() if flag in found)]
