"""The compiled library: loaded once a process, with one team of threads."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING

from camshaft.errors import DeviceError

from .build import build, compiler, library_path, reasons_against_running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SPINS = 2_000
"""How often a thread looks before it sleeps: about 50 us."""


class Library:
    """The C interface, with the types of its arguments.

    Attributes:
        path: The file.
        run: `run(operation, address of its arguments)`.
        play: `play(tape, first, last)`.
        start: The same on the other threads of the team, beside the caller.
        finish: Help to end what was started. Does nothing if there is nothing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._code = code = ctypes.CDLL(str(path))
        code.camshaft_open.argtypes = (
            ctypes.c_int32,
            ctypes.c_int32,
            ctypes.POINTER(ctypes.c_int32),
        )
        code.camshaft_open.restype = code.camshaft_close.restype = None
        code.camshaft_size.restype = ctypes.c_int32
        code.camshaft_argument_bytes.argtypes = (ctypes.c_int32,)
        code.camshaft_argument_bytes.restype = ctypes.c_int64
        code.camshaft_tape.restype = ctypes.c_void_p
        code.camshaft_tape_free.argtypes = (ctypes.c_void_p,)
        code.camshaft_tape_free.restype = None
        code.camshaft_tape_size.argtypes = (ctypes.c_void_p,)
        code.camshaft_tape_size.restype = ctypes.c_int64
        code.camshaft_record.argtypes = (ctypes.c_void_p,)
        code.camshaft_record.restype = None
        self.run = code.camshaft_run
        self.run.argtypes = (ctypes.c_int32, ctypes.c_void_p)
        self.run.restype = None
        self.play = code.camshaft_play
        self.play.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        self.play.restype = None
        self.start = code.camshaft_start
        self.start.argtypes, self.start.restype = self.play.argtypes, None
        self.finish = code.camshaft_finish
        self.finish.argtypes, self.finish.restype = (), None

    def open(self, cores: Sequence[int], spins: int) -> None:
        """Take a thread for each entry of `cores`, the core to stay on or -1; see `open_team`."""
        self._code.camshaft_open(len(cores), spins, (ctypes.c_int32 * len(cores))(*cores))

    def close(self) -> None:
        """Give the threads back."""
        self._code.camshaft_close()

    def size(self) -> int:
        """Return how many threads there are, 0 before `open`."""
        return int(self._code.camshaft_size())

    def argument_bytes(self, operation: int) -> int:
        """Return the size of an operation's arguments in C++, 0 where there is none."""
        return int(self._code.camshaft_argument_bytes(operation))

    def tape(self) -> int:
        """Return a new tape's address."""
        return int(self._code.camshaft_tape())

    def free(self, tape: int) -> None:
        """Drop a tape."""
        self._code.camshaft_tape_free(tape)

    def tape_size(self, tape: int) -> int:
        """Return how many operations are on a tape."""
        return int(self._code.camshaft_tape_size(tape))

    def record(self, tape: int | None) -> None:
        """Put all that runs from now on on a tape as well; None ends it."""
        self._code.camshaft_record(tape)


_wanted: tuple[tuple[int, ...], int] = ((-1,), 0)
"""Cores and spins of the team, from `open_team`: known before there is a library, perhaps."""


@cache
def library() -> Library:
    """Return the library, compiled if need be, with the team that was last asked for.

    Raises:
        DeviceError: There is none for this processor; says why.
    """
    against = reasons_against_running()
    if against:
        raise DeviceError(f"no compiled operations for this processor: {'; '.join(against)}")
    loaded = Library(build())
    loaded.open(*_wanted)
    return loaded


def expected() -> bool:
    """Return whether there are compiled operations here, or will be: compiles nothing."""
    return not reasons_against_running() and (library_path().exists() or compiler() is not None)


@cache
def reasons() -> tuple[str, ...]:
    """Return why there are no compiled operations here; empty where there are. May compile."""
    try:
        library()
    except DeviceError as error:
        return (str(error),)
    return ()


def found() -> str:
    """Return where the compiled operations are, or why there are none, in words. May compile."""
    return "; ".join(reasons()) or str(library().path)


def open_team(threads: int, cores: Sequence[int] = (), spins: int = SPINS) -> None:
    """Take threads for all operations of this process; those of an earlier call are given back.

    Nothing is compiled for it: where no operation is called, no thread is taken.

    Args:
        threads: How many, the caller's included.
        cores: A core for each of them, -1 or nothing for any. The caller's own is left alone.
        spins: How often a thread looks for work before it sleeps.
    """
    global _wanted
    _wanted = ((*cores, *[-1] * threads)[:threads], spins)
    if library.cache_info().currsize:
        library().open(*_wanted)


def close_team() -> None:
    """Give the threads back: what still runs operations does so in its own thread."""
    open_team(1)


def team_size() -> int:
    """Return how many threads operations run on."""
    return library().size()
