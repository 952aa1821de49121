"""Which pages a store of equal pages holds, in order of use, and room for those to come."""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Place = TypeVar("Place")


class StoreIndex(Generic[Place]):
    """An LRU order of digests with a bound; each has a place, whatever that is to the store.

    Room is reserved before a page is written, so that also those being written are within the
    bound. Safe for threads; nothing in here waits.
    """

    def __init__(self, most: int) -> None:
        """Make an empty index for at most `most` pages."""
        self.most = most
        self._pages: OrderedDict[bytes, Place] = OrderedDict()
        self._reserved = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._pages) + self._reserved

    def leading(self, digests: Sequence[bytes]) -> int:
        """Return how many leading digests are held."""
        # one look-up of a dict is atomic
        return sum(1 for _ in takewhile(self._pages.__contains__, digests))

    def digests(self) -> list[bytes]:
        """Return the digests of all pages that are held, oldest first."""
        with self._lock:
            return list(self._pages)

    def use(self, digest: bytes) -> Place | None:
        """Return the place of a page and make it the last to go; None if it is not held."""
        with self._lock:
            place = self._pages.get(digest)
            if place is not None:
                self._pages.move_to_end(digest)
            return place

    def reserve(self) -> list[tuple[bytes, Place]] | None:
        """Reserve room for a page.

        Returns:
            The pages that have to go for it, oldest first, no longer held; None if all the room is
            reserved. Each reservation ends with `add` or `cancel`.
        """
        with self._lock:
            if self._reserved >= self.most:
                return None
            self._reserved += 1
            over = len(self._pages) + self._reserved - self.most
            return self._oldest(over)

    def shed(self, count: int) -> list[tuple[bytes, Place]]:
        """Return up to `count` of the oldest pages, no longer held."""
        with self._lock:
            return self._oldest(count)

    def _oldest(self, count: int) -> list[tuple[bytes, Place]]:
        return [self._pages.popitem(last=False) for _ in range(min(count, len(self._pages)))]

    def add(self, digest: bytes, place: Place) -> Place | None:
        """Hold a page in reserved room; return the place of one that it replaces."""
        with self._lock:
            self._reserved -= 1
            before = self._pages.pop(digest, None)
            self._pages[digest] = place
            return before

    def cancel(self) -> None:
        """Give reserved room back."""
        with self._lock:
            self._reserved -= 1

    def drop(self, digest: bytes) -> Place | None:
        """Forget a page; return its place."""
        with self._lock:
            return self._pages.pop(digest, None)

    def restore(self, found: Iterable[tuple[bytes, Place]], kept: Place) -> None:
        """Replace what is held by `found`, oldest first; pages in place `kept` stay, as newest."""
        with self._lock:
            stay = [one for one in self._pages.items() if one[1] == kept]
            self._pages = OrderedDict(found)
            for digest, place in stay:
                self._pages.pop(digest, None)
                self._pages[digest] = place
