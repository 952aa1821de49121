"""Plays the core for a KV manager, and checks every answer against a model of the pages."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ..contracts.cache import CacheSpec, Delta, NoSpace, Prefix, Wait
from .cache_device import Device, PageId, Running, isolation
from .cache_tiers import Tiers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..contracts.cache import Hit, KVManager, PoolUsage

MOST_TOKENS = 28
"""Requests end by themselves at this length."""


class _Share(NamedTuple):
    """A request in a launched step; `sampled` tokens arrive when it settles."""

    request: Running
    admission: int
    start: int
    end: int
    sampled: list[int]
    drafting: bool


class _Flight(NamedTuple):
    step: int
    shares: list[_Share]


class ModelCore:
    """Uses a manager by the rules, carries out its deltas, and asserts that nobody is harmed.

    Attributes:
        cache: The manager.
        device: What pages hold.
        requests: All that have not ended, waiting or open.
        flights: Launched steps that are not settled, oldest first.
        newest: The last launched step; they count from 1.
        complete: The last settled step.
        seen: Counts what happened.
        expires: Whether the eviction policy lets pages become too old by themselves.
    """

    def __init__(
        self,
        cache: KVManager,
        spec: CacheSpec,
        seen: Counter[str],
        *,
        expires: bool = False,
        tiers: Tiers | None = None,
    ) -> None:
        self.cache = cache
        self.tiers = tiers or Tiers()
        self.spec = spec
        self.device = Device(spec)
        self.requests: list[Running] = []
        self.flights: deque[_Flight] = deque()
        self.newest = 0
        self.complete = 0
        self.seen = seen
        self.expires = expires
        self._versions: dict[tuple[str, str], int] = {}
        self._uids = 0
        self._found: dict[tuple[object, ...], int] = {}

    @property
    def open(self) -> list[Running]:
        """Requests that the manager knows."""
        return [one for one in self.requests if one.is_open]

    @property
    def ready(self) -> list[Running]:
        """Open requests that have something to compute."""
        return [one for one in self.open if one.computed < len(one.tokens) and not one.drafting]

    @property
    def waiting(self) -> list[Running]:
        """Requests without pages, whose steps have settled and for whom nothing is coming."""
        return [
            one
            for one in self.requests
            if not one.is_open and not one.in_flight and not self._awaits(one)
        ]

    @property
    def transferring(self) -> list[Running]:
        """Requests for whom a tier is bringing something."""
        return [one for one in self.requests if self._awaits(one)]

    @property
    def lost(self) -> list[Running]:
        """Requests that have lost their pages while steps of theirs are in flight."""
        everybody = {share.request: None for flight in self.flights for share in flight.shares}
        return [
            one for one in everybody if not one.is_open and one.writer not in self.device.distrusted
        ]

    def _awaits(self, request: Running) -> bool:
        if request.transfer and not self.cache.is_coming(request.transfer):
            request.transfer = 0
        return request.transfer != 0

    def arrive(self, prefix: Prefix) -> Running:
        """Add a request."""
        self._uids += 1
        tables: list[list[int]] = [[] for _ in self.spec.groups]
        request = Running(self._uids, prefix, list(prefix.tokens), tables)
        self.requests.append(request)
        return request

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """Ask for a hit, and check its size."""
        hit = self.cache.match(prefix, limit)
        epoch, tokens = self.cache.epoch, tuple(prefix.tokens)
        asked: tuple[object, ...] = epoch, isolation(prefix), prefix.scope, limit, tokens
        if self.cache.has_tiers:  # what was fetched for a request is that request's
            asked = *asked, id(prefix)
        before = self._found.get(asked, hit.ready)
        same = hit.ready <= before if self._may_expire(prefix) else hit.ready == before
        assert same, f"{before} tokens became {hit.ready} in one epoch"
        self._found[asked] = hit.ready
        newest = self._versions.get((prefix.salt, prefix.scope.namespace), 0)
        assert not hit.ready or prefix.scope.version >= newest, (
            f"version {prefix.scope.version} was served, and version {newest} was seen"
        )
        assert 0 <= hit.ready <= hit.ready + hit.loading <= limit, f"{hit} exceeds {limit}"
        assert self.spec.prefix or not hit.ready, "there is a hit although reuse is off"
        return hit

    def _may_expire(self, prefix: Prefix) -> bool:
        return self.expires or bool(prefix.scope.namespace)

    def admit(self, request: Running, chunk: int) -> bool:
        """Give a waiting request its hit and pages for `chunk` more tokens."""
        known = len(request.prefix.tokens)
        hit = self.match(request.prefix, known - 1)
        return self.adopt(request, hit, hit.ready + min(chunk, known - hit.ready))

    def adopt(self, request: Running, hit: Hit, tokens: int) -> bool:
        """Open a request with a hit, and check that what it brings is right."""
        if not self.allocate(request, tokens, hit):
            return False
        if self.cache.has_tiers and request.uid % 2:  # pages are filled by the next push
            self._open(request, 0)
            request.computed = request.committed = hit.ready
        else:
            self.push()
            self._open(request, hit.ready)
            self.device.check_trusted(request, hit.ready)
        self.seen["hit"] += hit.ready > 0
        self.seen["swapped in"] += request.swapped and hit.ready % self.spec.page_tokens > 0
        request.swapped = False
        self._see_version(request.prefix)
        return True

    def _see_version(self, prefix: Prefix) -> None:
        if not prefix.scope.namespace:
            return
        name, version = (prefix.salt, prefix.scope.namespace), prefix.scope.version
        before = self._versions.get(name, version)
        self._versions[name] = max(before, version)
        self.seen["version"] += version > before

    def _open(self, request: Running, ready: int) -> None:
        request.is_open = True
        request.computed = request.committed = ready
        self.device.check_readable(request, ready)

    def allocate(self, request: Running, tokens: int, hit: Hit | None = None) -> bool:
        """Ask for capacity, check and carry out the answer. False if there was no space."""
        if request.is_open and tokens <= request.granted:
            return True
        before = self.cache.usage()
        result = self.cache.allocate(request.uid, request.prefix, tokens, hit)
        if not isinstance(result, Delta):
            self._check_refusal(request, tokens, hit, result, before)
            return False
        shared = request.granted
        if not request.is_open:
            request.admission += 1
            shared = hit.ready if hit is not None else 0
        self.device.apply(request, result, shared, self.open)
        request.granted = tokens
        if hit is None or not hit.ready:
            evictable = sum(one.evictable for one in before)
            self.seen["evict"] += evictable > sum(one.evictable for one in self.cache.usage())
        return True

    def _check_refusal(
        self,
        request: Running,
        tokens: int,
        hit: Hit | None,
        result: Wait | NoSpace,
        before: tuple[PoolUsage, ...],
    ) -> None:
        if isinstance(result, Wait) and result.ticket < 0:
            self._begin_transfer(request, hit, result, before)
            return
        assert self.cache.usage() == before, f"after {result} the usage has changed"
        self.seen[type(result).__name__] += 1
        if isinstance(result, Wait):
            assert self.complete < result.ticket <= self.newest, (
                f"{result} names no step in flight: {self.complete + 1} to {self.newest} are"
            )
        if hit is not None and hit.ready:
            return  # how many of the hit's pages are evictable, only the manager knows
        count = self._pages(tokens) - self._pages(request.granted)
        lacking = [count - one.free - one.evictable for one in before]
        assert max(lacking) > 0, f"{result}, although {count} pages can be had at once: {before}"
        if self.device.leased or any(one.transfer for one in self.requests):
            return  # nor how many of the pinned ones come back by themselves
        short = [less - one.pinned for less, one in zip(lacking, before, strict=True)]
        if isinstance(result, Wait):
            assert max(short) <= 0, f"{result}, although no fence brings {count} pages: {before}"
        else:
            assert short[result.pool] == result.short, f"{result} for {count} pages: {before}"

    def _begin_transfer(
        self, request: Running, hit: Hit | None, result: Wait, before: tuple[PoolUsage, ...]
    ) -> None:
        assert hit is not None, f"{result} for a request that runs"
        assert hit.loading, f"{result} for a hit that tiers have no part in: {hit}"
        for was, now in zip(before, self.cache.usage(), strict=True):
            assert was.in_use == now.in_use, f"after {result} {was} became {now}"
        request.transfer = result.ticket
        self.seen["transfer"] += 1

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.spec.page_tokens)

    def launch(
        self, chunks: Sequence[tuple[Running, int]], token: int, *, fails: bool = False
    ) -> None:
        """Launch a step that computes tokens of some requests; those that are through sample."""
        placed = []
        for request, chunk in chunks:
            end = min(request.computed + chunk, len(request.tokens))
            if self.allocate(request, end):
                placed.append((request, end))
        if not placed:
            return
        self.push()
        self.newest += 1
        shares = []
        for request, end in placed:
            start = request.computed
            self.device.run(request, start, end, self.newest, failed=fails)
            sampled = [token] if end == len(request.tokens) < MOST_TOKENS else []
            shares.append(_Share(request, request.admission, start, end, sampled, False))
        self._launched(shares)
        if fails:
            self._fail(shares)

    def speculate(self, request: Running, drafts: int, accepted: int) -> None:
        """Launch a step that verifies drafts; what it writes for rejected ones is junk."""
        start, through = request.computed, len(request.tokens)
        if request.in_flight or through + drafts > MOST_TOKENS:
            return
        end = through + drafts
        if not self.allocate(request, end):
            return
        self.push()
        self.newest += 1
        right = [8] * min(accepted, drafts)
        request.tokens.extend(right)
        self.device.run(request, start, end, self.newest, failed=False)
        del request.tokens[through:]
        request.drafting = True
        self._launched([_Share(request, request.admission, start, end, [*right, 7], True)])
        self.seen["draft"] += 1

    def _launched(self, shares: list[_Share]) -> None:
        for share in shares:
            request = share.request
            request.in_flight += 1
            request.computed = share.end
            request.tokens.extend(share.sampled)
            self._commit(request, min(share.end, len(request.prefix.tokens)), self.newest)
        self.flights.append(_Flight(self.newest, shares))

    def _commit(self, request: Running, tokens: int, step: int) -> None:
        if tokens <= request.committed:
            return
        request.committed = tokens
        delta = self.cache.commit(request.uid, tokens, step)
        self.seen["pass"] += self.device.nullify(request, delta)

    def _fail(self, shares: list[_Share]) -> None:
        """The newest step turns out not to have run; its requests end."""
        self.seen["revoke"] += 1
        self.cache.revoke(self.newest)
        for share in shares:
            self.end(share.request)
        for share in shares:
            self._probe_again(share.request)

    def settle(self) -> None:
        """The oldest step is complete: its tokens arrive."""
        step, shares = self.flights.popleft()
        for share in shares:
            share.request.in_flight -= 1
            if not share.request.ended:
                self._settle(share, step)
        self.complete = step
        self.cache.fence(step)
        self.device.touched.pop(step, None)

    def _settle(self, share: _Share, step: int) -> None:
        request, written = share.request, share.end
        request.prefix.tokens.extend(share.sampled)
        if share.drafting:
            request.drafting = False
            written = len(request.prefix.tokens) - 1
        if not request.is_open or share.admission != request.admission:
            return
        if share.drafting:
            request.computed = written
            self.shrink(request, written, step)
        self._commit(request, min(written, len(request.prefix.tokens) - 1), step)

    def shrink(self, request: Running, tokens: int, step: int) -> None:
        """Give back capacity."""
        self.cache.shrink(request.uid, tokens, step)
        if tokens < request.granted:
            request.granted = tokens
            for table in request.tables:
                del table[self._pages(tokens) :]

    def end(self, request: Running, *, hold: bool = False, forget: bool = False) -> None:
        """End a request, wherever it is."""
        if request.is_open:
            lease = f"lease {request.uid}" if hold else ""
            if hold:
                self.push()  # what it is still to be filled with
            self.cache.free(request.uid, self.newest, hold=lease, forget=forget)
            if hold:
                self.device.leased[lease] = self.device.pages_of(request)
            if forget:
                self.device.distrusted.add(request.writer)
            self.seen["hold"] += hold
            self.seen["forget"] += forget
        else:
            self.seen["withdraw"] += request.transfer != 0
            self.cache.withdraw(request.uid)
        request.ended = True
        request.close()
        self.requests.remove(request)
        if forget:
            self._probe_again(request)

    def preempt(self, request: Running, *, swap: bool = False) -> None:
        """Take a request's pages; it waits, under the same name."""
        request.swapped = swap and self.cache.swap(request.uid, request.computed, self.newest)
        self.cache.free(request.uid, self.newest)
        request.close()
        self.seen["swap" if request.swapped else "preempt"] += 1

    def distrust(self, request: Running) -> None:
        """Note that a step in flight is wrong for a request without pages, which ends."""
        self.cache.distrust(request.uid)
        self.device.distrusted.add(request.writer)
        self.seen["distrust"] += 1
        if request.ended:
            self._probe_again(request)
        else:
            self.end(request, forget=True)

    def fork(self, parent: Running, at: int, token: int) -> None:
        """Let a request continue as two after `at` tokens, if it still holds what that needs."""
        if parent.drafting or not self._keeps(parent, at):
            return
        self.push()  # the model copies at once what the device copies behind its loads
        own = parent.prefix
        child = self.arrive(replace(own, tokens=[*own.tokens[:at], token], memo={}))
        before = self.cache.usage()
        result = self.cache.fork(parent.uid, child.uid, child.prefix, at)
        if isinstance(result, NoSpace):
            assert self.cache.usage() == before, f"after {result} the usage has changed"
            self.end(child)
            return
        child.admission += 1
        self.device.apply(child, result, at, self.open)
        child.granted = at
        self._open(child, at)
        partial = at % self.spec.page_tokens > 0
        assert bool(result.copies) == partial, f"a fork at {at} tokens brings {result.copies}"
        self.seen["copy"] += partial

    def _keeps(self, request: Running, at: int) -> bool:
        """Whether a request still holds all pages that a query at `at` sees."""
        size = self.spec.page_tokens
        for group, table in zip(self.spec.groups, request.tables, strict=True):
            first = max(0, at - group.window + 1) if group.window else 0
            if 0 in table[first // size : self._pages(at)]:
                return False
        return True

    def evict(self, pool: int, pages: int) -> None:
        """Ask for cached pages to be dropped."""
        before = self.cache.usage()[pool]
        done = self.cache.evict(pool, pages)
        after = self.cache.usage()[pool]
        assert done == min(pages, before.evictable), f"{done} pages of {pages} went, from {before}"
        assert after.free == before.free + done, f"{done} pages went, and {before} became {after}"

    def release(self, lease: str) -> None:
        """End a lease."""
        self.cache.release(lease)
        del self.device.leased[lease]

    def probe(self, prefix: Prefix, limit: int) -> None:
        """Check that whatever a match finds can be adopted, and is right."""
        hit = self.match(prefix, limit)
        epoch = self.cache.epoch
        again = self.cache.match(prefix, limit)
        assert self.cache.epoch == epoch, "a match changed something"
        same = again.ready == hit.ready or self._may_expire(prefix)
        assert same, "a match changed something"
        if hit.ready:
            request = self.arrive(prefix)
            adopted = self.adopt(request, hit, hit.ready)
            assert adopted or request.transfer, "a hit without new pages was refused"
            self.end(request)

    def _probe_again(self, request: Running) -> None:
        own = request.prefix
        self.probe(replace(own, tokens=list(own.tokens), memo={}), len(own.tokens))

    def wait_for_space(self, request: Running, tokens: int) -> None:
        """Ask for capacity; on a `Wait`, let its step complete, and check that there is space."""
        result = self.cache.allocate(request.uid, request.prefix, tokens)
        if isinstance(result, Delta):
            self.device.apply(request, result, request.granted, self.open)
            request.granted = max(tokens, request.granted)
        elif isinstance(result, Wait):
            while self.complete < result.ticket and self.flights:
                self.settle()
            assert self.allocate(request, tokens), f"{result} was in vain"

    def push(self) -> None:
        """Begin the moves that the manager wants; the newest step was launched before them."""
        self.seen["move"] += self.tiers.push(self.cache, self.device)

    def prefetch(self, request: Running) -> None:
        """Have the pages of a waiting request brought nearer."""
        self.cache.prefetch(request.uid, request.prefix, len(request.prefix.tokens) - 1)

    def poll(self, most: int = 8, *, ok: bool = True) -> None:
        """Let callbacks and the oldest moves come to their end; with `ok` false, exports fail."""
        self.tiers.run_posted()
        self.tiers.end_moves(self.cache, most, ok=ok)

    def check_books(self) -> None:
        """Check that every page is in one class, and that pages in tables are in use."""
        broken = self.cache.check_integrity()
        assert not broken, "; ".join(broken)
        held: set[PageId] = set()
        for request in self.open:
            held |= self.device.pages_of(request)
        usages = self.cache.usage()
        assert len(usages) == len(self.spec.groups), f"{usages} for {self.spec.groups}"
        for pool, one in enumerate(usages):
            assert one.total == self.spec.groups[pool].pages, f"pool {pool}: {one}"
            assert min(one) >= 0, f"pool {pool}: {one}"
            parts = one.free + one.evictable + one.in_use + one.pinned
            assert parts == one.total, f"pool {pool}: {one} adds up to {parts}"
            tables = sum(1 for page in held if page.group == pool)
            assert one.in_use == tables, f"pool {pool}: {one}, and {tables} pages are in tables"

    def finish(self) -> None:
        """End everything, and check that all pages can be had back."""
        while self.flights:
            self.settle()
        for request in list(self.requests):
            self.end(request)
        for lease in list(self.device.leased):
            self.release(lease)
        self.cache.fence(self.newest)
        self.push()
        while self.tiers.under_way or self.tiers.posted:
            self.poll()
            self.push()
        for pool, one in enumerate(self.cache.usage()):
            assert one.in_use == one.pinned == 0, f"pool {pool} is in use at idle: {one}"
            assert self.cache.evict(pool, one.total) == one.evictable, f"pool {pool}: {one}"
            assert self.cache.usage()[pool].free == one.total, f"pool {pool} lost pages"
