"""The pages of one pool in arrays: a page costs some bytes, and no object.

Each page is in one class at any time:

    held       a table holds it, any number of times
    leased     no table does, a lease does                       counted as pinned
    fenced     nobody does, but a step that may touch it is not
               known to be complete; cached or not               counted as pinned
    evictable  cached and unused
    free       holds nothing

Sets of pages are int32 arrays without duplicates, so that a request's thousands of pages change
class in a few array operations.
"""

from __future__ import annotations

from array import array
from struct import pack
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from camshaft.contracts.cache import PoolUsage

if TYPE_CHECKING:
    from collections.abc import Sequence

Pages: TypeAlias = NDArray[np.int32]

FREE, HELD, LEASED, FENCED, EVICTABLE = range(5)
CLASSES = ("free", "held", "leased", "fenced", "evictable")
NOBODY = -1
FEW = 32
"""Pages; so few are faster one by one than as an array."""
NO_PAGES: Pages = np.zeros(0, dtype=np.int32)


def ids_of(ids: Sequence[int]) -> array[int]:
    """Return a copy of page ids as an array of the standard library."""
    # `array("i", ids)` takes ten times as long
    return array("i", ids if isinstance(ids, array) else pack(f"{len(ids)}i", *ids))


def pages_of(ids: Sequence[int]) -> Pages:
    """Return a copy of page ids as an array to compute with."""
    return np.frombuffer(ids_of(ids), dtype=np.int32)


class PageArrays:
    """Classes, holders and fences of pages 1 to `total`. Knows nothing of tokens.

    Attributes:
        free: Stack of free pages.
        state: Class of each page; like all arrays, with an entry for the null page.
        holders: Tables that hold it.
        leases: Leases that hold it.
        newest: The newest step that may touch it.
        owner: Uid of the one open request that held it since it was taken, or `NOBODY`.
        run: Id of the cached run that it belongs to, or 0.
        counts: Pages in each class.
        complete: All steps up to this one are complete; they count from 1.
    """

    def __init__(self, total: int) -> None:
        """Make pages that are all free."""
        self.total = total
        self._ids = array("i", range(total + 1))
        self.free = self._ids[1:]
        # single pages go through the Python arrays, which are faster there, sets through views
        self._states = array("b", bytes(total + 1))
        self._holders = array("i", bytes(4 * (total + 1)))
        self._owners = array("q", [NOBODY]) * (total + 1)
        self._runs = array("i", bytes(4 * (total + 1)))
        self.state = np.frombuffer(self._states, dtype=np.int8)
        self.holders = np.frombuffer(self._holders, dtype=np.int32)
        self.owner = np.frombuffer(self._owners, dtype=np.int64)
        self._leases = array("i", bytes(4 * (total + 1)))
        self._newest = array("q", bytes(8 * (total + 1)))
        self.leases = np.frombuffer(self._leases, dtype=np.int32)
        self.newest = np.frombuffer(self._newest, dtype=np.int64)
        self.run = np.frombuffer(self._runs, dtype=np.int32)
        self.counts = [total, 0, 0, 0, 0]
        self.complete = 0
        self._due: dict[int, list[Pages]] = {}

    def available(self, kept: Pages = NO_PAGES) -> int:
        """Return how many pages can be had at once if the cached pages `kept` stay."""
        room = self.counts[FREE] + self.counts[EVICTABLE]
        return room - int(np.count_nonzero(self.state[kept] == EVICTABLE)) if len(kept) else room

    def when(self, short: int, kept: Pages) -> int | None:
        """Return the step whose completion frees `short` pages, or None if none does."""
        steps, counts = np.unique(self.newest[self._fenced(kept)], return_counts=True)
        place = int(np.searchsorted(np.cumsum(counts), short))
        return int(steps[place]) if place < len(steps) else None

    def coming(self, kept: Pages) -> int:
        """Return how many pages wait for a fence and for nothing else, without `kept`."""
        return len(self._fenced(kept))

    def take(self, count: int, uid: int) -> array[int]:
        """Give `count` free pages to a request. The caller has seen that there are so many."""
        free = self.free
        self.counts[FREE] -= count
        self.counts[HELD] += count
        taken = free[len(free) - count :]
        del free[len(free) - count :]
        first = taken[0] if count else 0
        if count <= FEW and taken != self._ids[first : first + count]:
            states, holders, owners = self._states, self._holders, self._owners
            for page in taken:
                states[page], holders[page], owners[page] = HELD, 1, uid
            return taken
        ids = slice(first, first + count) if count <= FEW else pages_of(taken)  # mostly in a row
        self.state[ids] = HELD
        self.holders[ids] = 1
        self.owner[ids] = uid
        return taken

    def take_one(self, uid: int) -> int:
        """Give a free page to a request, as `take` does."""
        page = self.free.pop()
        self.counts[FREE] -= 1
        self.counts[HELD] += 1
        self._states[page], self._holders[page], self._owners[page] = HELD, 1, uid
        return page

    def claims(self, ids: Pages) -> tuple[int, dict[int, int]]:
        """Return what would be shared if somebody adopted `ids`.

        Returns:
            How many of them are held, and how many of these each owner would no longer own.
        """
        held = ids[self.holders[ids] > 0]
        owners, counts = np.unique(self.owner[held], return_counts=True)
        found = dict(zip(owners.tolist(), counts.tolist(), strict=True))
        found.pop(NOBODY, None)
        return len(held), found

    def foreign(self, ids: Pages, uid: int) -> int:
        """Return how many of `ids` a request does not own."""
        return int(np.count_nonzero(self.owner[ids] != uid))

    def adopt(self, ids: Pages, uid: int) -> None:
        """Give cached or held pages to one more holder, who owns those that nobody held."""
        unheld = self.holders[ids] == 0
        mine = ids[unheld]
        self.owner[ids[~unheld]] = NOBODY
        self.owner[mine] = uid
        self.holders[ids] += 1
        self._move(mine, HELD)

    def drop(self, ids: Pages, step: int) -> Pages:
        """Take pages from one holder each, whose steps up to `step` may touch them.

        Returns:
            Those that became evictable.
        """
        if len(ids) <= FEW:
            return self._drop_few(ids.tolist(), step)
        self.newest[ids] = np.maximum(self.newest[ids], step)
        self.holders[ids] -= 1
        return self._place(ids[self.holders[ids] == 0])

    def _drop_few(self, ids: list[int], step: int) -> Pages:
        """The same, page by page."""
        holders, newest, counts = self._holders, self._newest, self.counts
        late: dict[int, list[int]] = {}
        cached: list[int] = []
        for page in ids:
            newest[page] = max(newest[page], step)
            holders[page] -= 1
            if holders[page]:
                continue
            self._owners[page] = NOBODY
            if self._leases[page]:
                state = LEASED
            elif newest[page] > self.complete:
                state = FENCED
                late.setdefault(newest[page], []).append(page)
            elif self._runs[page]:
                state = EVICTABLE
                cached.append(page)
            else:
                state = FREE
                self.free.append(page)
            self._states[page] = state
            counts[HELD] -= 1
            counts[state] += 1
        for due, pages in late.items():
            self._due.setdefault(due, []).append(np.array(pages, dtype=np.int32))
        return np.array(cached, dtype=np.int32) if cached else NO_PAGES

    def read(self, ids: Pages, step: int) -> None:
        """Let pages that nobody need hold wait for `step`, as if it had read them."""
        later = ids[self.newest[ids] < step]
        self.newest[later] = step
        if step > self.complete:
            state = self.state[later]  # one that waits for an earlier step is due again
            self._await(later[(state == EVICTABLE) | (state == FENCED)])

    def lease(self, ids: Pages) -> None:
        """Keep held pages from being reused, until `unlease`."""
        self.leases[ids] += 1

    def unlease(self, ids: Pages) -> Pages:
        """Undo one `lease` of each page; return those that became evictable."""
        self.leases[ids] -= 1
        return self._place(ids[(self.leases[ids] == 0) & (self.state[ids] == LEASED)])

    def fence(self, step: int) -> list[Pages]:
        """Note that all steps up to `step` are complete; return what became evictable."""
        self.complete = max(self.complete, step)
        cached = []
        for due in [one for one in self._due if one <= step]:
            for ids in self._due.pop(due):
                # Held again in the meantime: it waits under another step, or not at all.
                quiet = (self.state[ids] == FENCED) & (self.newest[ids] <= self.complete)
                cached.append(self._retire(ids[quiet]))
        return cached

    def changes(self, ids: Pages) -> list[int]:
        """Return at which places of `ids` a page is held or waits unlike the one before."""
        if len(ids) == 1:
            return []
        waits = np.maximum(self.newest[ids], self.complete)
        columns = (self.holders[ids], self.leases[ids], waits)
        differ = np.logical_or.reduce([one[1:] != one[:-1] for one in columns])
        return [place + 1 for place in np.flatnonzero(differ).tolist()]

    def cache(self, ids: array[int], run: int) -> None:
        """Note that pages belong to a run, and to no other."""
        if len(ids) == 1:
            self._runs[ids[0]] = run
        else:
            self.run[pages_of(ids)] = run

    def uncache(self, ids: Pages) -> None:
        """Note that pages hold nothing that can be found; unused ones become free."""
        self.run[ids] = 0
        self._retire(ids[self.state[ids] == EVICTABLE])

    def usage(self) -> PoolUsage:
        """Return how many pages are in each class."""
        free, held, leased, fenced, evictable = self.counts
        return PoolUsage(self.total, free, evictable, held, leased + fenced)

    def _fenced(self, kept: Pages) -> Pages:
        if not self._due:
            return NO_PAGES
        waiting = np.unique(np.concatenate([ids for due in self._due.values() for ids in due]))
        waiting = waiting[self.state[waiting] == FENCED]
        return np.setdiff1d(waiting, kept, assume_unique=True)

    def _place(self, ids: Pages) -> Pages:
        """Place pages that nobody holds any more."""
        self.owner[ids] = NOBODY
        leased = self.leases[ids] > 0
        self._move(ids[leased], LEASED)
        rest = ids[~leased]
        late = self.newest[rest] > self.complete
        self._await(rest[late])
        return self._retire(rest[~late])

    def _await(self, ids: Pages) -> None:
        self._move(ids, FENCED)
        steps = self.newest[ids]
        for step in np.unique(steps).tolist():
            self._due.setdefault(step, []).append(ids[steps == step])

    def _retire(self, ids: Pages) -> Pages:
        """Place pages that nobody holds and nothing touches; return those that are evictable."""
        cached = self.run[ids] > 0
        free, kept = ids[~cached], ids[cached]
        self._move(free, FREE)
        self.free.frombytes(free.tobytes())
        self._move(kept, EVICTABLE)
        return kept

    def _move(self, ids: Pages, state: int) -> None:
        if not len(ids):
            return
        for old, count in enumerate(np.bincount(self.state[ids], minlength=len(CLASSES)).tolist()):
            self.counts[old] -= count
        self.counts[state] += len(ids)
        self.state[ids] = state
