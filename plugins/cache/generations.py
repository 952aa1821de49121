"""Cached runs by version of their namespace, so that a whole version can be given up at once."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from .cached_run import CachedRun


class Generation:
    """Runs of one version of one namespace, in order of registration."""

    __slots__ = ("key", "runs", "version")

    def __init__(self, key: bytes, version: int) -> None:
        self.key = key
        self.version = version
        self.runs: dict[CachedRun, None] = {}


class Generations:
    """The generations of a pool. Giving one up costs the same however many runs it has."""

    def __init__(self) -> None:
        self._current: dict[bytes, dict[int, Generation]] = {}
        self._outdated: deque[Generation] = deque()

    def add(self, cached: CachedRun, key: bytes, version: int) -> None:
        """Note a run that was registered under a namespace."""
        versions = self._current.setdefault(key, {})
        generation = versions.get(version)
        if generation is None:
            generation = versions[version] = Generation(key, version)
        generation.runs[cached] = None
        cached.generation = generation

    def remove(self, cached: CachedRun) -> None:
        """Forget a run of a generation."""
        generation = cached.generation
        assert generation is not None, "a run without a namespace has no generation"
        cached.generation = None
        del generation.runs[cached]
        versions = self._current.get(generation.key, {})
        if not generation.runs and versions.get(generation.version) is generation:
            del versions[generation.version]
            if not versions:
                del self._current[generation.key]

    def outdate(self, key: bytes, newest: int) -> None:
        """Let the runs of versions before `newest` go first."""
        versions = self._current.get(key, {})
        for version in [one for one in versions if one < newest]:
            self._outdated.append(versions.pop(version))
        if not versions:
            self._current.pop(key, None)

    def all_runs(self) -> Iterator[Collection[CachedRun]]:
        """Iterate over the runs of each generation, outdated or not."""
        for versions in self._current.values():
            for generation in versions.values():
                yield generation.runs
        for generation in self._outdated:
            yield generation.runs

    def outdated(self) -> CachedRun | None:
        """Return a run of an outdated version, the one registered last; None without any."""
        while self._outdated:
            runs = self._outdated[0].runs
            if runs:
                return next(reversed(runs))
            self._outdated.popleft()
        return None
