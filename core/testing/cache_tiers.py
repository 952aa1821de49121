"""What lies below a model device: trays, page moves that end late, and callbacks that come late.

Pages travel under the number of what they hold. While a move is under way, the tray of an export
holds junk, and that of a load must not change.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from ..contracts.moves import Moved
from .cache_device import PageId

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..contracts.cache import KVManager
    from ..contracts.moves import PageMove, Tray
    from .cache_device import Device, Slot

PAGE_BYTES = 64
_JUNK = b"\xff" * PAGE_BYTES


class ModelTray:
    """See `Tray`."""

    def __init__(self, pages: list[bytes], count: int) -> None:
        self.pages = pages
        self.count = count

    def read(self, place: int, into: memoryview) -> None:
        """Copy a page out."""
        assert place < self.count, f"place {place} of a tray for {self.count} pages was read"
        into[:] = self.pages[place]

    def write(self, place: int, page: memoryview) -> None:
        """Copy a page in."""
        assert place < self.count, f"place {place} of a tray for {self.count} pages was written"
        self.pages[place] = bytes(page)

    def first(self, count: int) -> Tray:
        """Return a smaller one in the same memory, which is void."""
        assert count <= self.count
        return ModelTray(self.pages, count)


class _UnderWay(NamedTuple):
    """A move, and what its tray holds when it ends."""

    move: PageMove
    pages: list[bytes]
    exports: bool


class Tiers:
    """Carries out what a manager wants moved, and tells it later.

    Attributes:
        posted: Callbacks that were not run yet.
        under_way: Moves of which the manager has not heard.
    """

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.under_way: deque[_UnderWay] = deque()
        self._known: list[tuple[int, list[Slot | None]]] = []

    def tray(self, group: int, pages: int) -> Tray:
        """See `CacheSpec.tray`."""
        return ModelTray([_JUNK] * pages, pages)

    def push(self, cache: KVManager, device: Device) -> int:
        """Begin what the manager wants; return how many moves."""
        if not cache.has_tiers:
            return 0
        moves = cache.take_moves()
        for one in moves.exports:
            pages = [self._keep(device, PageId(one.group, page)) for page in one.pages]
            self._begin(one, pages, exports=True)
        device.left.clear()  # what follows writes
        for one in moves.loads:
            pages = _pages(one.tray)[: len(one.pages)]
            for page, content in zip(one.pages, pages, strict=True):
                device.load(PageId(one.group, page), self._look_up(one.group, content))
            self._begin(one, list(pages), exports=False)
        return len(moves.exports) + len(moves.loads)

    def _begin(self, move: PageMove, pages: list[bytes], *, exports: bool) -> None:
        assert move.tray.count == len(move.pages), f"{move} has a tray of {move.tray.count} pages"
        is_plain = exports or len(set(move.pages)) == len(move.pages)
        assert is_plain, f"{move} fills a page twice"
        assert all(one.move.ticket != move.ticket for one in self.under_way), f"{move} came twice"
        if exports:
            _pages(move.tray)[: len(pages)] = [_JUNK] * len(pages)
        self.under_way.append(_UnderWay(move, pages, exports))

    def _keep(self, device: Device, page: PageId) -> bytes:
        self._known.append((page.group, device.content(page)))
        return len(self._known).to_bytes(8, "little").ljust(PAGE_BYTES, b"\0")

    def _look_up(self, group: int, content: bytes) -> list[Slot | None]:
        number = int.from_bytes(content[:8], "little")
        assert 1 <= number <= len(self._known), f"what is loaded was never exported: {content!r}"
        of_group, slots = self._known[number - 1]
        assert of_group == group, f"a page of group {of_group} was loaded into group {group}"
        return slots

    def end_moves(self, cache: KVManager, most: int, *, ok: bool = True) -> None:
        """Let the oldest moves end; with `ok` false, exports among them have failed."""
        ended: list[Moved] = []
        while self.under_way and len(ended) < most:
            move, pages, exports = self.under_way.popleft()
            now = _pages(move.tray)[: len(pages)]
            wanted = [_JUNK] * len(pages) if exports else pages
            assert now == wanted, f"the tray of {move} was written while it was under way"
            if exports and ok:
                _pages(move.tray)[: len(pages)] = pages
            ended.append(Moved(move.ticket, ok or not exports))
        if ended:
            cache.moved(ended)

    def run_posted(self) -> None:
        """Run the callbacks that were posted up to now."""
        for _ in range(len(self.posted)):
            self.posted.popleft()()


def _pages(tray: Tray) -> list[bytes]:
    assert isinstance(tray, ModelTray)
    return tray.pages
