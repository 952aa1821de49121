"""Page moves: pages that travel between the device and the host's memory, beside the steps.

A manager with tiers asks for moves, the executor carries them out, and the engine stands between
the two: it takes what the manager wants before it launches a step, and tells the manager what is
complete. Nobody waits for a move but those who asked to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Tray(Protocol):
    """Host memory for whole pages of one KV group, in the order in which the device copies them.

    Its pages may be read and written on any thread, each by one at a time, and by nobody while a
    move with the tray is under way.
    """

    @property
    def count(self) -> int:
        """Pages that it has room for."""

    def read(self, place: int, into: memoryview) -> None:
        """Copy page number `place` out, as one run of the group's `page_bytes`."""

    def write(self, place: int, page: memoryview) -> None:
        """Copy a page in; it fits the device that `read` got it from, and equal ones."""

    def first(self, count: int) -> Tray:
        """Return a tray for fewer pages in the same memory. What this one held is void."""


class PageMove(NamedTuple):
    """Pages of one group and the host memory that they are copied to or from.

    Attributes:
        ticket: Names the move; positive, and never reused by its manager.
        group: Index into `CacheSpec.groups`.
        pages: Device pages; those of a load each once.
        tray: Room for exactly these, in their order.
    """

    ticket: int
    group: int
    pages: Sequence[int]
    tray: Tray


class Moves(NamedTuple):
    """What is to be moved before the next step.

    Attributes:
        exports: From the device to the host, as the pages are behind all steps launched so far.
        loads: From the host to the device, after the exports.
    """

    exports: tuple[PageMove, ...] = ()
    loads: tuple[PageMove, ...] = ()


NO_MOVES = Moves()


class Moved(NamedTuple):
    """A move that has ended: its tray is the manager's again.

    Attributes:
        ticket: Of the `PageMove`.
        ok: Whether the copy was made. Of an export that was not, the tray holds anything; of a
            load, the pages do.
    """

    ticket: int
    ok: bool = True
