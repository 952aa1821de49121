"""A KV manager that counts pages and reuses nothing: for tests of everything but caches."""

from __future__ import annotations

from ..contracts.cache import (
    EMPTY_DELTA,
    CacheEvent,
    CacheSpec,
    Delta,
    Hit,
    KVManager,
    NoSpace,
    PoolUsage,
    Prefix,
    TableWrite,
    Wait,
)


class CountingCache(KVManager):
    """Gives each request pages of its own. One full group; forks copy everything."""

    def __init__(self, spec: CacheSpec) -> None:
        self.epoch = 0
        self.spec = spec
        self.total = spec.groups[0].pages
        self.page_tokens = spec.page_tokens
        self._free = list(range(self.total, 0, -1))
        self._held: dict[int, list[int]] = {}
        self._fenced: list[tuple[int, list[int]]] = []
        self._passed = 0

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """Nothing is ever cached."""
        return Hit(0)

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        """See `KVManager.allocate`."""
        held = self._held.get(uid, [])
        more = -(-tokens // self.page_tokens) - len(held)
        if more <= 0:
            self._held[uid] = held
            return EMPTY_DELTA
        if more > len(self._free):
            fenced = sum(len(pages) for _, pages in self._fenced)
            if more <= len(self._free) + fenced:
                return Wait(min(step for step, _ in self._fenced))
            return NoSpace(0, more - len(self._free))
        pages = [self._free.pop() for _ in range(more)]
        self._held[uid] = [*held, *pages]
        return Delta((TableWrite(0, len(held), pages),))

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """Nothing to remember."""
        return EMPTY_DELTA

    def revoke(self, step: int) -> None:
        """Nothing to forget."""

    def shrink(self, uid: int, tokens: int, step: int) -> None:
        """See `KVManager.shrink`."""
        keep = -(-tokens // self.page_tokens)
        self._fenced.append((step, self._held[uid][keep:]))
        self.fence(self._passed)
        self._held[uid] = self._held[uid][:keep]

    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        """Refuse: nothing is shared here."""
        return NoSpace(0, -(-at // self.page_tokens))

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """See `KVManager.free`."""
        self._fenced.append((step, self._held.pop(uid)))
        self.fence(self._passed)

    def distrust(self, uid: int) -> None:
        """Nothing is matchable."""

    def release(self, lease: str) -> None:
        """No leases."""

    def fence(self, step: int) -> None:
        """See `KVManager.fence`."""
        self._passed = step
        for after, pages in self._fenced:
            if after <= step:
                self._free.extend(pages)
        self._fenced = [entry for entry in self._fenced if entry[0] > step]

    def evict(self, pool: int, pages: int) -> int:
        """Nothing is cached."""
        return 0

    def usage(self) -> tuple[PoolUsage, ...]:
        """See `KVManager.usage`."""
        held = sum(len(pages) for pages in self._held.values())
        fenced = sum(len(pages) for _, pages in self._fenced)
        return (PoolUsage(self.total, len(self._free), 0, held, fenced),)

    def check_integrity(self) -> list[str]:
        """See `KVManager.check_integrity`."""
        everyone = [*self._free, *(page for pages in self._held.values() for page in pages)]
        everyone += [page for _, pages in self._fenced for page in pages]
        if sorted(everyone) != list(range(1, self.total + 1)):
            return [f"pages are lost or doubled: {sorted(everyone)}"]
        return []

    def events(self) -> list[CacheEvent]:
        """Nothing happens."""
        return []
