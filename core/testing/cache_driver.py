"""Short forms of what a core does with a KV manager, for literal tests. A page holds 4 tokens."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from ..contracts.cache import CacheSpec, Delta, GroupSpec, Hit, KVManager, Prefix
from ..request import EVERYWHERE, CacheScope
from .eviction import LeastRecent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..contracts.eviction import EvictionPolicy

PAGE = 4


def make_spec(
    *pages: int,
    windows: Sequence[int] = (),
    prefix: bool = True,
    identity: bytes = b"model",
    eviction: Callable[[], EvictionPolicy] = LeastRecent,
    now: Callable[[], float] | None = None,
) -> CacheSpec:
    """Return a spec with one group for each of `pages`; those with a window slide.

    Without `now` a second passes each time that the clock is asked.
    """
    windows = windows or [0] * len(pages)
    groups = tuple(
        GroupSpec("sliding" if window else "full", size, window, (place,), 64)
        for place, (size, window) in enumerate(zip(pages, windows, strict=True))
    )
    seconds = count(1)
    now = now or (lambda: float(next(seconds)))
    return CacheSpec(PAGE, groups, identity, prefix, eviction, now)


class Opened(NamedTuple):
    """A request that got pages.

    Attributes:
        uid: Its name.
        prefix: Its tokens.
        hit: What was reused.
        tables: For each group.
    """

    uid: int
    prefix: Prefix
    hit: Hit
    tables: list[list[int]]

    @property
    def pages(self) -> list[int]:
        """The table of the first group."""
        return self.tables[0]


def tokens_of(length: int, first: int = 100) -> list[int]:
    """Return `first`, `first + 1`, ..."""
    return list(range(first, first + length))


def apply(delta: object, tables: list[list[int]]) -> None:
    """Carry out the writes of a delta.

    Raises:
        AssertionError: It is none, or leaves a gap.
    """
    assert isinstance(delta, Delta), f"a delta was expected, not {delta}"
    for group, first, pages in delta.writes:
        table = tables[group]
        assert first <= len(table), f"a write at {first} leaves a gap in a table of {len(table)}"
        table[first : first + len(pages)] = list(pages)


def open_request(
    cache: KVManager,
    uid: int,
    tokens: Sequence[int],
    *,
    length: int = 0,
    salt: str = "",
    adapter: int = 0,
    priority: int = 0,
    scope: CacheScope = EVERYWHERE,
) -> Opened:
    """Match and allocate, for `length` or all tokens.

    Raises:
        AssertionError: There was no space.
    """
    prefix = Prefix(list(tokens), salt, adapter, priority, scope)
    hit = cache.match(prefix, len(tokens) - 1)
    tables: list[list[int]] = [[] for _ in cache.usage()]
    apply(cache.allocate(uid, prefix, length or len(tokens), hit), tables)
    return Opened(uid, prefix, hit, tables)


def serve(
    cache: KVManager,
    uid: int,
    tokens: Sequence[int],
    step: int,
    *,
    salt: str = "",
    adapter: int = 0,
    priority: int = 0,
    scope: CacheScope = EVERYWHERE,
) -> Opened:
    """Run a request to its end: compute its tokens in `step`, free it, complete the step."""
    opened = open_request(
        cache, uid, tokens, salt=salt, adapter=adapter, priority=priority, scope=scope
    )
    cache.commit(uid, len(tokens), step)
    cache.free(uid, step)
    cache.fence(step)
    return opened


def ready(
    cache: KVManager,
    tokens: Sequence[int],
    *,
    salt: str = "",
    adapter: int = 0,
    scope: CacheScope = EVERYWHERE,
    limit: int = -1,
) -> int:
    """Return how many tokens a request with these would reuse."""
    prefix = Prefix(list(tokens), salt, adapter, scope=scope)
    return cache.match(prefix, len(tokens) - 1 if limit < 0 else limit).ready


def check_books(cache: KVManager) -> None:
    """Check that the pages add up and that the manager finds nothing wrong.

    Raises:
        AssertionError: They do not, or it does.
    """
    for pool, one in enumerate(cache.usage()):
        parts = one.free + one.evictable + one.in_use + one.pinned
        assert parts == one.total, f"pool {pool}: {one} adds up to {parts}"
    broken = cache.check_integrity()
    assert not broken, "; ".join(broken)
