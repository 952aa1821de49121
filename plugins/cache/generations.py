"""Cached pages by version of their namespace, so that a whole version can be given up at once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .pool import CachedPage


class Generation:
    """Pages of one version of one namespace, in order of registration."""

    __slots__ = ("key", "pages", "version")

    def __init__(self, key: bytes, version: int) -> None:
        self.key = key
        self.version = version
        self.pages: dict[CachedPage, None] = {}


class Generations:
    """The generations of a pool. Giving one up costs the same however many pages it has."""

    def __init__(self) -> None:
        self._current: dict[bytes, dict[int, Generation]] = {}
        self._outdated: deque[Generation] = deque()

    def add(self, cached: CachedPage, key: bytes, version: int) -> None:
        """Note a page that was registered under a namespace."""
        versions = self._current.setdefault(key, {})
        generation = versions.get(version)
        if generation is None:
            generation = versions[version] = Generation(key, version)
        generation.pages[cached] = None
        cached.generation = generation

    def remove(self, cached: CachedPage) -> None:
        """Forget a page of a generation."""
        generation = cached.generation
        assert generation is not None, "a page without a namespace has no generation"
        cached.generation = None
        del generation.pages[cached]
        versions = self._current.get(generation.key, {})
        if not generation.pages and versions.get(generation.version) is generation:
            del versions[generation.version]
            if not versions:
                del self._current[generation.key]

    def outdate(self, key: bytes, newest: int) -> None:
        """Let the pages of versions before `newest` go first."""
        versions = self._current.get(key, {})
        for version in [one for one in versions if one < newest]:
            self._outdated.append(versions.pop(version))
        if not versions:
            self._current.pop(key, None)

    def all_pages(self) -> Iterator[Collection[CachedPage]]:
        """Iterate over the pages of each generation, outdated or not."""
        for versions in self._current.values():
            for generation in versions.values():
                yield generation.pages
        for generation in self._outdated:
            yield generation.pages

    def next_outdated(self) -> CachedPage | None:
        """Take out a page of an outdated version, the deepest ones first; None without any."""
        while self._outdated:
            pages = self._outdated[0].pages
            if pages:
                cached, _ = pages.popitem()
                cached.generation = None
                return cached
            self._outdated.popleft()
        return None
