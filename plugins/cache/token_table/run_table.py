"""The manager behind the token table. Here a page may have any size: tests use larger ones too."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from camshaft.contracts.cache import (
    EMPTY_DELTA,
    CacheEvent,
    CacheSpec,
    Delta,
    Hit,
    NoSpace,
    PageCopy,
    PoolUsage,
    Prefix,
    TableWrite,
    Wait,
)

from ..checks import check_commit, check_fork_text, check_shrink, check_spec, keeps_all
from ..departed import Departed
from ..digests import PageDigests
from ..manager import PageManager
from ..pages import Pages, pages_of
from ..versions import Versions, namespace_key
from .admission import Admission, lacking
from .checks import broken_invariants
from .hits import Found, find, paths_of
from .lengths import Lengths
from .pool import TokenPool
from .requests import Hold, OpenRequest, own_from, table_writes
from .runs import Run, path_pages
from .trust import Trust

if TYPE_CHECKING:
    from collections.abc import Collection

    from camshaft.contracts.cache import GroupKind

    from ..components import TokenTableSettings


class RunTable(PageManager[OpenRequest]):
    """Manages full groups. See `token_table`.

    Attributes:
        pools: One for each group.
    """

    def __init__(self, settings: TokenTableSettings, spec: CacheSpec) -> None:
        """Make a manager whose pages are all free.

        Raises:
            CamshaftError: The spec has groups that this manager does not do.
        """
        check_spec(spec, "token_table", frozenset({"full"}))
        super().__init__(spec)
        self.settings = settings
        self.pools = [TokenPool(group.pages, spec) for group in spec.groups]
        self._digests = PageDigests(spec.identity, spec.page_tokens)
        self._versions = Versions()
        self._lengths = Lengths(settings.expected_share)
        self._trust = Trust(self.pools, self.requests)
        self._departed: Departed[OpenRequest] = Departed()
        self._unseen = False  # whether commits wait to be entered into the trees
        self._admission = Admission(self.pools, self.requests, spec.page_tokens)

    @classmethod
    def supports(cls, page_tokens: int, kinds: Collection[GroupKind]) -> list[str]:
        """See `KVManager.supports`. Any page, and only groups that keep all tokens."""
        return keeps_all(kinds)

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """See `KVManager.match`. `ready` is whole pages; nothing is ever loading."""
        length = min(limit, len(prefix.tokens)) // self._page_tokens
        if length < 1 or not self.spec.prefix or self._versions.is_outdated(prefix):
            return Hit(0)
        self._enter_all()
        root = self._digests.root(prefix)
        length, paths = find(self.pools, root, prefix, length, self.spec.now())
        if not length:
            return Hit(0)
        return Hit(length * self._page_tokens, handle=Found(self.epoch, paths))

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        """See `KVManager.allocate`.

        A first allocation is also told to wait where the request, with those that are open, is
        expected to need more than there is before enough of them have ended.

        Raises:
            ValueError: The hit is stale, too long, or comes for a request that is open.
        """
        request = self.requests.get(uid)
        if request is None:
            return self._open(uid, prefix, tokens, hit)
        if hit is not None and hit.ready:
            raise ValueError(f"request {uid} is open: a hit comes with its first allocation")
        first = len(request.holds[0].table)
        count = -(-tokens // self._page_tokens) - first
        if count <= 0:
            return EMPTY_DELTA
        for pool in self.pools:
            if len(pool.pages.free) < count:  # else there is nothing to reckon: the usual case
                refusal = lacking(self.pools, count)
                if refusal is not None:
                    return refusal
                break
        writes = []
        for group, held in enumerate(request.holds):
            taken = self._take(group, count, uid)
            held.table.extend(taken)
            writes.append(TableWrite(group, first, taken))
        return Delta(tuple(writes))

    def _open(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None
    ) -> Delta | Wait | NoSpace:
        paths = paths_of(hit, tokens, self.epoch, len(self.pools))
        ready = hit.ready // self._page_tokens if hit is not None else 0
        reused = [path_pages(path, ready) for path in paths]
        request = OpenRequest(
            uid,
            prefix,
            self._digests.root(prefix),
            committed=ready * self._page_tokens,
            expected=self._lengths.expected(prefix),
            opened=max(tokens, len(prefix.tokens)),
        )
        if not self._admission.admits(request, reused, max(0, self._trust.in_flight - 1)):
            return Wait(self._trust.complete + 1)
        count = -(-tokens // self._page_tokens) - ready
        refusal = lacking(self.pools, count, reused)
        if refusal is not None:
            return refusal
        request.own_from = own_from(prefix, ready)
        # Hits leave the evictable pages before new ones are taken, which might evict them.
        for group, path in enumerate(paths):
            request.holds.append(self._adopt(group, request, path, reused[group]))
        for group, held in enumerate(request.holds):
            held.table.extend(self._take(group, count, uid))
        self.requests[uid] = request
        self._lengths.opened(uid)
        self._see(request)
        return Delta(table_writes(request.holds))

    def _see(self, request: OpenRequest) -> None:
        """Note the version of a request that is opened: what is older is not found any more."""
        key = namespace_key(request.prefix)
        if not key:
            return
        if self._versions.see(request.prefix):
            self.epoch += 1
            for pool in self.pools:
                pool.tree.outdate(key)
            for one in self.requests.values():
                one.trusted &= not self._versions.is_outdated(one.prefix)
        request.trusted = not self._versions.is_outdated(request.prefix)

    def _adopt(self, group: int, request: OpenRequest, path: list[Run], ids: Pages) -> Hold:
        foreign = self._disown(group, ids)
        self.pools[group].adopt(path, ids, request.uid, request.prefix.priority)
        return Hold(array("i", ids.tobytes()), foreign, len(ids), path[-1] if path else None)

    def _disown(self, group: int, ids: Pages) -> int:
        """Note that pages get one more holder; return how many had one."""
        held, owners = self.pools[group].pages.claims(ids)
        for owner, count in owners.items():
            self.requests[owner].holds[group].foreign += count
        return held

    def _take(self, group: int, count: int, uid: int) -> array[int]:
        """Take pages that were seen to be available."""
        pool = self.pools[group]
        short = count - len(pool.pages.free)
        if short > 0:
            self._evict(group, short, "space")
        return pool.pages.take(count, uid)

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """See `KVManager.commit`. The trees learn of prompts when somebody looks: see `_enter_all`.

        They learn of generated tokens when the request is freed or forked: a step that only decodes
        changes nothing for anybody else.

        Raises:
            ValueError: The tokens are not known yet, or have no pages.
        """
        request = self._known(uid)
        size, committed = self._page_tokens, request.committed
        if tokens <= committed:
            return EMPTY_DELTA
        check_commit(request, tokens, size)
        before = committed // size
        request.committed = tokens
        if tokens // size > before and request.trusted and self.spec.prefix:
            if step > self._trust.complete:
                self._trust.note(request, before, step)
            if not request.unseen:
                request.unseen, request.since_s = True, self.spec.now()
            if before * size < request.opened:
                self._unseen = True
                self.epoch += 1
        return EMPTY_DELTA

    def _enter_all(self) -> None:
        """Enter what was committed since the last time: many steps of a request at once."""
        if self._unseen:
            self._unseen = False
            for request in self.requests.values():
                self._enter(request)

    def _enter(self, request: OpenRequest, *, anew: bool = False) -> None:
        """Enter what a request committed; `anew` is what the epoch has not changed for."""
        full = request.committed // self._page_tokens
        if not request.trusted or not self.spec.prefix:
            return
        request.unseen = False
        for group, (pool, held) in enumerate(zip(self.pools, request.holds, strict=True)):
            if held.considered < full and not held.apart:
                stored = pool.enter(request, held, full)
                self.epoch += anew and stored > 0
                self._note_stored(group, stored)
                if pool.replaced:
                    self._note("evicted", group, pool.replaced, "expired")
                    pool.replaced = 0

    def revoke(self, step: int) -> None:
        """See `KVManager.revoke`. Later steps read what this one should have written: theirs too.

        The requests of these steps stay open, but nothing that they write becomes matchable.
        """
        self._enter_all()
        self._note_cuts(self._trust.revoke(step), "revoked")

    def _note_cuts(self, cuts: list[tuple[int, int]], why: str) -> None:
        for group, pages in cuts:
            self._note("evicted", group, pages, why)

    def shrink(self, uid: int, tokens: int, step: int) -> None:
        """See `KVManager.shrink`.

        Raises:
            ValueError: `tokens` is less than what is committed.
        """
        request = self._known(uid)
        check_shrink(request, tokens)
        keep = -(-tokens // self._page_tokens)
        for pool, held in zip(self.pools, request.holds, strict=True):
            ids = pages_of(held.table[keep:])
            del held.table[keep:]
            held.foreign -= pool.pages.foreign(ids, uid)
            pool.drop(ids, step, self.spec.now(), request.committed)

    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        """See `KVManager.fork`.

        Raises:
            ValueError: The child is open, its prefix differs before `at`, or the parent has no
                pages for so many tokens.
        """
        source = self._known(parent)
        if child in self.requests:
            raise ValueError(f"request {child} is open already")
        check_fork_text(source, prefix, at, self._page_tokens)
        full, partial = at // self._page_tokens, at % self._page_tokens > 0
        for group, pool in enumerate(self.pools):
            if partial and not pool.pages.available():
                return NoSpace(group, 1)
        self._enter(source, anew=True)
        copies, holds = [], []
        for group, held in enumerate(source.holds):
            ids = pages_of(held.table[:full])
            self._disown(group, ids)
            self.pools[group].pages.adopt(ids, child)
            holds.append(held.head(full))
            if partial:
                taken = self._take(group, 1, child)
                copies.append(PageCopy(group, held.table[full], taken[0]))
                holds[group].table.extend(taken)
        opened = source.fork(child, prefix, holds, at, full)
        opened.expected = self._lengths.expected(prefix)
        self.requests[child] = opened
        self._trust.inherit(source, opened)
        return Delta(table_writes(holds), tuple(copies))

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """See `KVManager.free`.

        Raises:
            LookupError: The request is not open.
        """
        request = self._known(uid)
        self._trust.see(step)
        self._enter(request, anew=True)
        if forget:
            self._enter_all()
            del self.requests[uid]
            self._note_cuts(self._trust.forget(request, request.own_from), "forgotten")
        else:
            del self.requests[uid]
            self._lengths.ended(uid, request.prefix)
            if not hold:
                self._join(request, step)
            self._departed.note(uid, step, request)
        now = self.spec.now()
        for pool, held in zip(self.pools, request.holds, strict=True):
            ids = pages_of(held.table)
            if hold:
                pool.lease(hold, ids)
            pool.drop(ids, step, now, request.committed)

    def distrust(self, uid: int) -> None:
        """See `KVManager.distrust`."""
        request = self._departed.take(uid)
        if request is not None:
            self._enter_all()
            self._note_cuts(self._trust.forget(request, request.own_from), "forgotten")

    def _join(self, request: OpenRequest, step: int) -> None:
        """Enter what a request wrote behind its own copy of a cached page, now that it ends."""
        full = request.committed // self._page_tokens
        if not request.trusted:
            return
        for group, (pool, held) in enumerate(zip(self.pools, request.holds, strict=True)):
            if held.apart:
                stored = pool.join(request, held, full, step)
                self.epoch += stored > 0
                self._note_stored(group, stored)

    def release(self, lease: str) -> None:
        """See `KVManager.release`.

        Raises:
            LookupError: There is no such lease.
        """
        for pool in self.pools:
            pool.release(lease)

    def fence(self, step: int) -> None:
        """See `KVManager.fence`."""
        self._admission.step_ended()
        self._trust.fence(step)
        self._departed.fence(step)
        for pool in self.pools:
            pool.fence(step)

    def evict(self, pool: int, pages: int) -> int:
        """See `KVManager.evict`."""
        return self._evict(pool, max(0, pages), "asked")

    def _evict(self, group: int, count: int, why: str) -> int:
        return self._note_gone(group, self.pools[group].tree.evict(count), why)

    def usage(self) -> tuple[PoolUsage, ...]:
        """See `KVManager.usage`."""
        return tuple(pool.pages.usage() for pool in self.pools)

    def check_integrity(self) -> list[str]:
        """See `KVManager.check_integrity`."""
        return broken_invariants(self)

    def events(self) -> list[CacheEvent]:
        """See `KVManager.events`. When nobody asks, only the newest few thousand are kept."""
        self._enter_all()
        return super().events()

    def _note_stored(self, group: int, pages: int) -> None:
        """Record that pages were entered. The epoch changed when they were committed."""
        if pages:
            self._events.append(CacheEvent("stored", group, pages, "commit"))
