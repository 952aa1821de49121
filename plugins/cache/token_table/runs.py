"""What is cached in one pool: a tree of runs, each a stretch of tokens and their pages.

Two runs with the same parent differ in their first page. A run grows at its end while its writer
runs on, and is cut in two where another request branches off. So there are about as many objects
as requests and branches, and comparing a prompt with the tree is comparing arrays.

Whoever holds a page of a run holds all pages before it, in this tree. Hence the pages of a run that
nobody uses are at its end, what lies behind them is unused too, and eviction from the leaves' ends
reaches every unused page. `RunTable` keeps to that: see `Hold.apart` there.

Compare Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs", NeurIPS
2024 (arXiv 2312.07104), section 3, whose tree has nodes of whole requests, too.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from camshaft.contracts.eviction import Entry

from ..eviction_heap import EvictionHeap
from ..manager import Gone
from ..pages import EVICTABLE, NO_PAGES, PageArrays, Pages, pages_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from camshaft.contracts.cache import CacheSpec

_TOKEN_BYTES = 4


@dataclass(slots=True, eq=False, kw_only=True)
class Run(Entry):
    """Tokens that follow each other in the cache. A root is one without a parent, and is empty.

    Attributes:
        number: Its id; 0 for roots and for runs that are gone.
        parent: The run before it.
        root: Of a root, the digest of what isolates its tree.
        namespace: Of a root, names its namespace; empty for none.
        text: Its tokens.
        ids: Their pages.
        first: Pages before it.
        children: Runs behind it, by the bytes of their first page's tokens.
        writer: Uid of the request that made it.
        until_s: When it becomes too old to be served, whatever the policy says.
        outdated: Whether its namespace has a newer version: it cannot be found any more.
    """

    number: int = 0
    parent: Run | None = None
    root: bytes = b""
    namespace: bytes = b""
    text: array[int] = field(default_factory=lambda: array("i"))
    ids: array[int] = field(default_factory=lambda: array("i"))
    first: int = 0
    children: dict[bytes, Run] = field(default_factory=dict)
    writer: int = 0
    until_s: float = inf
    outdated: bool = False

    def is_fresh(self, now: float, most_s: float) -> bool:
        """Whether it may be served now to a request that takes pages of `most_s` seconds."""
        return now < self.expires_s and now - self.created_s < most_s

    def ends_at(self, place: int) -> bool:
        """Whether it is a leaf, and `place` the first page behind it."""
        return self.number > 0 and not self.children and self.first + len(self.ids) == place


class Writing(NamedTuple):
    """What a request says of the runs that it makes.

    Attributes:
        uid: Its own.
        priority: Its own.
        since_s: When the oldest of the pages was written.
        ttl_s: For how long they may be served.
    """

    uid: int
    priority: int
    since_s: float
    ttl_s: float


def common(run: array[int], text: array[int], start: int, most: int) -> int:
    """Return how many tokens of `run`, at most `most`, are those of `text` from `start` on."""
    if run[:most] == text[start : start + most]:
        return most
    ours = np.frombuffer(run, dtype=np.int32, count=most)
    theirs = np.frombuffer(text, dtype=np.int32, count=most, offset=start * _TOKEN_BYTES)
    return int((ours != theirs).argmax())


class RunTree:
    """The cached runs of a pool, by content.

    Attributes:
        pages: The pool.
        roots: Trees by the digest of what isolates them.
        runs: By number.
        evictable: Leaves whose last page is evictable.
    """

    def __init__(self, pages: PageArrays, spec: CacheSpec) -> None:
        """Make an empty tree over a pool."""
        self.pages = pages
        self.roots: dict[bytes, Run] = {}
        self.runs: dict[int, Run] = {}
        self.evictable: EvictionHeap[Run] = EvictionHeap(spec.eviction(), spec.now)
        self._page_tokens = spec.page_tokens
        self._now = spec.now
        self._numbers = 0
        self._named: dict[bytes, dict[bytes, None]] = {}  # roots, in the order of their making

    def walk(
        self, root: bytes, text: array[int], limit: int, *, now: float = -inf, most_s: float = inf
    ) -> tuple[list[Run], int]:
        """Follow `text`, for at most `limit` pages, where it is fresh.

        Args:
            root: Digest of what isolates it.
            text: Tokens.
            limit: Most pages.
            now: Seconds; runs that have expired then are not followed.
            most_s: Nor are runs of this age.

        Returns:
            The runs met, the last of which may be followed in part, and the pages followed.
        """
        path: list[Run] = []
        run, place, size = self.roots.get(root), 0, self._page_tokens
        while run is not None and place < limit:
            run = run.children.get(self._key(text, place))
            if run is None or not run.is_fresh(now, most_s):
                break
            path.append(run)
            most = min(len(run.ids), limit - place)
            same = common(run.text, text, place * size, most * size) // size
            place += same
            if same < len(run.ids):
                break
        return path, place

    def open(self, root: bytes, namespace: bytes) -> Run:
        """Return the root of a tree, which is made if need be, as one of the namespace."""
        found = self.roots.get(root)
        if found is None:
            found = self.roots[root] = Run(root=root, namespace=namespace)
            if namespace:
                self._named.setdefault(namespace, {})[root] = None
        return found

    def follow(self, run: Run, place: int, text: array[int], end: int) -> tuple[Run, int]:
        """Follow `text` from page `place`, which is in `run` or right behind it, to `end` at most.

        Returns:
            The run in which it ended, and the page behind the last one followed.
        """
        size = self._page_tokens
        while place < end:
            offset = place - run.first
            if offset == len(run.ids):
                child = run.children.get(self._key(text, place))
                if child is None:
                    break
                run = child
                continue
            most = min(len(run.ids) - offset, end - place)
            rest = run.text[offset * size :] if offset else run.text
            same = common(rest, text, place * size, most * size) // size
            place += same
            if same < most:
                break
        return run, place

    def extend(self, run: Run, text: array[int], ids: array[int]) -> None:
        """Let a leaf whose last page is held go on with held pages.

        Args:
            run: The leaf.
            text: All tokens from the root on, those of the pages included.
            ids: Pages that follow its own.
        """
        start = run.first + len(run.ids)
        run.text.extend(text[start * self._page_tokens : (start + len(ids)) * self._page_tokens])
        run.ids.extend(ids)
        self.pages.cache(ids, run.number)

    def add(self, run: Run, text: array[int], ids: array[int], writing: Writing) -> Run:
        """Put a run behind `run`.

        Args:
            run: One whose end the new tokens follow.
            text: Tokens, full pages of them.
            ids: Pages, which are held.
            writing: Whose they are.
        """
        first, until_s = run.first + len(run.ids), writing.since_s + writing.ttl_s
        added = Run(
            depth=first * self._page_tokens,
            created_s=writing.since_s,
            touched_s=writing.since_s,
            priority=writing.priority,
            expires_s=until_s,
            until_s=until_s,
            number=self._number(),
            parent=run,
            text=text,
            ids=ids,
            first=first,
            writer=writing.uid,
        )
        self.runs[added.number] = run.children[self._key(text, 0)] = added
        self.pages.cache(ids, added.number)
        self.review((run,))
        return added

    def split(self, run: Run, keep: int) -> Run:
        """Cut a run in two after `keep` pages; return the new first part."""
        size = self._page_tokens
        parent = run.parent
        assert parent is not None
        head = replace(
            run,
            number=self._number(),
            text=run.text[: keep * size],
            ids=run.ids[:keep],
            children={},
            memo={},
        )
        self.runs[head.number] = parent.children[self._key(head.text, 0)] = head
        del run.text[: keep * size]
        del run.ids[:keep]
        run.parent = head
        run.first += keep
        run.depth += keep * size
        head.children[self._key(run.text, 0)] = run
        self.pages.cache(head.ids, head.number)
        return head

    def evict(self, count: int) -> Gone:
        """Turn up to `count` evictable pages into free ones; outdated ones are the first to go."""
        version = expired = chosen = 0
        while (left := count - version - expired - chosen) > 0:
            run = self.evictable.first()
            if run is not None and self._unused(run) <= left:
                run = self.evictable.pop()  # another one if that has expired just now
            if run is None:
                break
            going = min(self._unused(run), left)
            if run.outdated:
                version += going
            elif self.evictable.is_due(run):
                expired += going
            else:
                chosen += going
            self._trim(run, len(run.ids) - going)
        return Gone(version, expired, chosen)

    def _unused(self, run: Run) -> int:
        """Return how many pages of a leaf are evictable: those behind the last that is not."""
        return int(np.count_nonzero(self.pages.state[pages_of(run.ids)] == EVICTABLE))

    def outdate(self, namespace: bytes) -> None:
        """Let all that is cached of a namespace go first. Nobody will ask for it any more."""
        runs = [self.roots[root] for root in self._named.pop(namespace, ())]
        for run in runs:
            runs.extend(run.children.values())
            run.outdated = True
            run.expires_s = run.until_s = -inf
            if self.evictable.knows(run):
                self.evictable.touch(run)

    def cut(self, run: Run, keep: int) -> int:
        """Forget a run after `keep` pages, and everything behind it; return how many pages."""
        behind, gone = [run], len(run.ids) - keep
        for one in behind:
            behind.extend(one.children.values())
        for one in reversed(behind[1:]):
            gone += len(one.ids)
            self._trim(one, 0)
        self._trim(run, keep)
        return gone

    def review(self, runs: Iterable[Run]) -> None:
        """Bring `evictable` up to date for runs whose pages or children have changed."""
        for run in runs:
            evictable = (
                run.number > 0
                and not run.children
                and bool(self.pages.state[run.ids[-1]] == EVICTABLE)
            )
            if evictable == (run in self.evictable):
                continue
            if not evictable:
                self.evictable.remove(run)
                continue
            run.pages = len(run.ids)
            if self.evictable.knows(run):
                self.evictable.touch(run)
            self.evictable.insert(run)

    def runs_of(self, ids: Pages) -> Iterator[Run]:
        """Iterate over the runs that pages belong to; pages of a run had best be together."""
        numbers = self.pages.run[ids]
        changes = numbers[np.flatnonzero(np.diff(numbers, prepend=0))]
        return (self.runs[number] for number in changes.tolist() if number)

    def _trim(self, run: Run, keep: int) -> None:
        key = self._key(run.text, 0)
        ids = pages_of(run.ids)[keep:]
        del run.text[keep * self._page_tokens :]
        del run.ids[keep:]
        if keep:
            self.pages.uncache(ids)
            self.review((run,))
            return
        if self.evictable.knows(run):
            self.evictable.discard(run)
        self.pages.uncache(ids)
        parent = run.parent
        assert parent is not None
        del parent.children[key], self.runs[run.number]
        run.number = 0
        if parent.number:
            self.review((parent,))
        elif not parent.children:
            del self.roots[parent.root]
            named = self._named.get(parent.namespace)
            if named is not None:
                named.pop(parent.root, None)
                if not named:
                    del self._named[parent.namespace]

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _key(self, text: array[int], place: int) -> bytes:
        size = self._page_tokens
        return text[place * size : (place + 1) * size].tobytes()


def path_pages(path: Iterable[Run], length: int) -> Pages:
    """Return the first `length` pages of a path that begins at a root."""
    parts = [pages_of(run.ids) for run in path if run.first < length]
    return np.concatenate(parts)[:length] if parts else NO_PAGES
