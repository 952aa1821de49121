"""What tiers keep: units, which are whole pages of all KV groups, named by a digest of their text.

A unit is a page, or as many short ones as make a setting's number of tokens, so that a tier under a
cache with a page for each token does not deal in single tokens. The pages of all groups go
together: a prefix is of use only where every group has it.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ..digests import PageDigests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import CacheSpec, Prefix
    from camshaft.contracts.moves import Tray


class Units:
    """The size and the names of units.

    Attributes:
        pages: Pages of each group in a unit.
        tokens: Tokens in a unit.
        page_tokens: Tokens in a page.
        page_bytes: Of a page of each group.
        bytes: Of a unit.
        identity: Digest of everything that makes units useless to another engine.
    """

    def __init__(self, spec: CacheSpec, least_tokens: int) -> None:
        """Choose the size.

        Args:
            spec: What the manager manages.
            least_tokens: A unit has at least so many tokens, rounded up to whole pages.
        """
        self.pages = -(-least_tokens // spec.page_tokens)
        self.tokens = self.pages * spec.page_tokens
        self.page_tokens = spec.page_tokens
        self.page_bytes = [group.page_bytes for group in spec.groups]
        self.bytes = self.pages * sum(self.page_bytes)
        groups = [(one.kind, one.window, one.layers, one.page_bytes) for one in spec.groups]
        form = repr((spec.page_tokens, self.tokens, groups)).encode()
        self.identity = blake2b(spec.identity + form, digest_size=16).digest()
        self._digests = PageDigests(spec.identity, self.tokens)

    def keys(self, prefix: Prefix, count: int) -> list[bytes]:
        """Return the names of at least the first `count` units, all full; not to be changed."""
        return self._digests.of(prefix, count)

    def pages_for(self, tokens: int) -> int:
        """Return how many pages of each group so many tokens take."""
        return -(-tokens * self.pages // self.tokens)

    def pages_of(self, table: Sequence[int], unit: int) -> list[int]:
        """Return the pages of a unit in a group's table."""
        return list(table[unit * self.pages : (unit + 1) * self.pages])


class Seat:
    """Room for a unit in trays, one for each group."""

    __slots__ = ("_place", "_trays", "_units")

    def __init__(self, units: Units, trays: Sequence[Tray], place: int) -> None:
        self._units = units
        self._trays = trays
        self._place = place

    def read(self, into: memoryview) -> None:
        """Copy the unit out: group by group, page by page."""
        at, pages = 0, self._units.pages
        for tray, size in zip(self._trays, self._units.page_bytes, strict=True):
            for place in range(self._place * pages, (self._place + 1) * pages):
                tray.read(place, into[at : at + size])
                at += size

    def write(self, unit: memoryview) -> None:
        """Copy a unit in."""
        at, pages = 0, self._units.pages
        for tray, size in zip(self._trays, self._units.page_bytes, strict=True):
            for place in range(self._place * pages, (self._place + 1) * pages):
                tray.write(place, unit[at : at + size])
                at += size
