"""What is not to be trusted once pages turned out to be wrong: they, and what builds on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .cached_run import CachedRun


class Doubt:
    """Texts from some page on, in whatever pool their keys and values are."""

    def __init__(self, runs: Iterable[CachedRun], page_bytes: int) -> None:
        """Doubt some runs.

        Args:
            runs: The runs.
            page_bytes: Of a page's tokens.
        """
        self._page_bytes = page_bytes
        # by unit, texts up to the end of the first page in doubt; and units before which one is
        self._texts: dict[bytes, list[bytes]] = {}
        self._parents: set[bytes] = set()
        for run in runs:
            self._add(run, run.first)

    def __bool__(self) -> bool:
        """Return whether there is any."""
        return bool(self._texts)

    def _add(self, run: CachedRun, place: int) -> None:
        text = run.text[: (place + 1) * self._page_bytes]
        self._texts.setdefault(run.parent, []).append(text)
        if run.after:
            self._parents.add(run.after)

    def place(self, parent: bytes, text: bytes) -> int | None:
        """Return from which page on a unit's text is in doubt, if it is."""
        if parent in self._parents:
            return 0
        found = [len(one) for one in self._texts.get(parent, ()) if text.startswith(one)]
        return min(found) // self._page_bytes - 1 if found else None

    def spread(self, runs: Iterable[CachedRun]) -> list[tuple[CachedRun, int]]:
        """Return those of `runs` that are in doubt, with how many of their pages are not.

        Args:
            runs: All of all pools.
        """
        found = []
        # By depth, so that what a run builds on is judged before it.
        for run in sorted(runs, key=lambda one: one.depth):
            place = self.place(run.parent, run.text)
            if place is not None:
                place = max(place, run.first)
                self._add(run, place)
                found.append((run, place - run.first))
        return found
