"""Random use of a KV manager, with a model of what every page holds.

The machine plays the core: it admits, launches, settles, preempts, forks and ends requests in any
order, with steps in flight, and carries out every delta on a modelled device. Whatever the manager
decides, each request must find its own keys in its own table, pages must not change hands too
early, and the books must balance.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ..contracts.cache import CacheSpec, Delta, GroupSpec, NoSpace, Prefix, Wait
from .cache_device import Device, PageId, Running
from .eviction import LeastRecent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..contracts.cache import Hit, KVManager, PoolUsage

T = TypeVar("T")

_TEXTS = ([7] * 16, [7] * 6 + [8] * 10)
"""What prompts begin with: few and alike, so that they have pages in common."""

_PICK = st.integers(0, 7)
_MOST_REQUESTS = 5
_MOST_TOKENS = 28
_MOST_IN_FLIGHT = 3


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


class CacheMachine(RuleBasedStateMachine):
    """Rules are what a core may do; invariants hold after each.

    `seen` counts what happened, so that a test can tell that it did.
    """

    def __init__(
        self,
        make: Callable[[CacheSpec], KVManager],
        kinds: Collection[str],
        seen: Counter[str],
    ) -> None:
        super().__init__()
        self.make = make
        self.kinds = kinds
        self.seen = seen
        self.seconds = 0.0
        self.uids = 0
        self.newest = 0
        self.complete = 0
        self.flights: deque[_Flight] = deque()
        self.requests: list[Running] = []

    @initialize(
        page_tokens=st.sampled_from([1, 2, 4]),
        windows=st.sampled_from([(0,), (0,), (0, 3), (5, 0), (4,), (0, 1), (0, 2, 6)]),
        pages=st.integers(4, 20),
        prefix=st.sampled_from([True, True, True, False]),
    )
    def start(
        self, page_tokens: int, windows: tuple[int, ...], pages: int, prefix: bool
    ) -> None:
        """Make the manager."""
        if "sliding" not in self.kinds:
            windows = (0,) * len(windows)
        groups = tuple(
            GroupSpec("sliding" if window else "full", pages + place, window, (place,), 64)
            for place, window in enumerate(windows)
        )
        self.spec = CacheSpec(page_tokens, groups, b"model", prefix, LeastRecent, self._now)
        self.cache = self.make(self.spec)
        self.device = Device(self.spec)

    def _now(self) -> float:
        self.seconds += 1.0
        return self.seconds


    def _open(self) -> list[Running]:
        return [one for one in self.requests if one.is_open]

    def _ready(self) -> list[Running]:
        return [
            one for one in self._open() if one.computed < len(one.tokens) and not one.drafting
        ]

    def _waiting(self) -> list[Running]:
        return [one for one in self.requests if not one.is_open and not one.in_flight]


    @precondition(lambda self: len(self.requests) < _MOST_REQUESTS)
    @rule(
        text=st.sampled_from(_TEXTS),
        length=st.integers(1, 16),
        tail=st.lists(st.sampled_from([7, 8, 9]), max_size=2),
        salt=st.sampled_from(["", "", "", "a"]),
        adapter=st.sampled_from([0, 0, 0, 1]),
    )
    def arrive(
        self, text: list[int], length: int, tail: list[int], salt: str, adapter: int
    ) -> None:
        """A request comes."""
        self._new(Prefix(text[:length] + tail, salt, adapter))

    def _new(self, prefix: Prefix) -> Running:
        self.uids += 1
        tables: list[list[int]] = [[] for _ in self.spec.groups]
        request = Running(self.uids, prefix, list(prefix.tokens), tables)
        self.requests.append(request)
        return request

    @precondition(lambda self: self._waiting())
    @rule(pick=_PICK, chunk=st.integers(1, 8))
    def admit(self, pick: int, chunk: int) -> None:
        """A waiting request gets its prefix and pages."""
        request = _pick(self._waiting(), pick)
        known = len(request.prefix.tokens)
        hit = self._match(request.prefix, known - 1)
        need = hit.ready + min(chunk, known - hit.ready)
        if self._allocate(request, need, hit):
            self._opened(request, hit.ready)
            self.device.check_trusted(request, hit.ready)
            self.seen["hit"] += hit.ready > 0

    def _match(self, prefix: Prefix, limit: int) -> Hit:
        hit = self.cache.match(prefix, limit)
        assert 0 <= hit.ready <= hit.ready + hit.loading <= limit, f"{hit} exceeds {limit}"
        assert self.spec.prefix or not hit.ready, "there is a hit although reuse is off"
        return hit

    def _opened(self, request: Running, ready: int) -> None:
        request.is_open = True
        request.computed = request.committed = ready
        self.device.check_readable(request, ready)

    def _allocate(self, request: Running, tokens: int, hit: Hit | None = None) -> bool:
        """Ask for capacity; check and carry out the answer. False if there was none."""
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
        self.device.apply(request, result, shared, self._open())
        request.granted = tokens
        if request.is_open:
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
        assert self.cache.usage() == before, f"after {result} the usage has changed"
        self.seen[type(result).__name__] += 1
        if isinstance(result, Wait):
            assert self.complete < result.ticket <= self.newest, (
                f"{result} names no step in flight: {self.complete + 1} to {self.newest} are"
            )
        else:
            assert result.short >= 1, f"{result} lacks nothing"
        if hit is not None and hit.ready:
            return  # how many of the hit's pages are evictable, only the manager knows
        count = self._pages(tokens) - self._pages(request.granted)
        lacking = [count - one.free - one.evictable for one in before]
        assert max(lacking) > 0, f"{result}, although {count} pages can be had at once: {before}"
        if self.device.leased:
            return
        short = [less - one.pinned for less, one in zip(lacking, before, strict=True)]
        if isinstance(result, Wait):
            assert max(short) <= 0, f"{result}, although no fence brings {count} pages: {before}"
        else:
            assert short[result.pool] == result.short, f"{result} for {count} pages: {before}"

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.spec.page_tokens)

    @precondition(lambda self: self._ready() and len(self.flights) < _MOST_IN_FLIGHT)
    @rule(
        picks=st.lists(st.tuples(_PICK, st.integers(1, 8)), min_size=1, max_size=3),
        fails=st.sampled_from([False] * 9 + [True]),
        token=st.sampled_from([7, 7, 8]),
    )
    def launch(self, picks: list[tuple[int, int]], fails: bool, token: int) -> None:
        """A step computes tokens of some requests; those that are through sample one."""
        chosen: dict[int, tuple[Running, int]] = {}
        for pick, chunk in picks:
            request = _pick(self._ready(), pick)
            end = min(request.computed + chunk, len(request.tokens))
            if request.uid not in chosen and self._allocate(request, end):
                chosen[request.uid] = request, end
        if not chosen:
            return
        self.newest += 1
        shares = []
        for request, end in chosen.values():
            start = request.computed
            self.device.run(request, start, end, self.newest, failed=fails)
            sampled = [token] if end == len(request.tokens) < _MOST_TOKENS else []
            shares.append(_Share(request, request.admission, start, end, sampled, False))
        self._launched(shares)
        if fails:
            self._fail(shares)

    @precondition(lambda self: self._ready() and len(self.flights) < _MOST_IN_FLIGHT)
    @rule(pick=_PICK, drafts=st.integers(1, 4), accepted=st.integers(0, 4))
    def speculate(self, pick: int, drafts: int, accepted: int) -> None:
        """A step verifies drafts; what was written for rejected ones is junk."""
        request = _pick(self._ready(), pick)
        start, through = request.computed, len(request.tokens)
        if request.in_flight or through + drafts > _MOST_TOKENS:
            return
        if not self._allocate(request, through + drafts):
            return
        self.newest += 1
        self.seen["draft"] += 1
        right = [8] * min(accepted, drafts)
        request.tokens.extend(right)
        self.device.run(request, start, through + drafts, self.newest, failed=False)
        request.drafting = True
        shares = [
            _Share(request, request.admission, start, through + drafts, [*right, 7], True)
        ]
        del request.tokens[through:]
        self._launched(shares)

    def _launched(self, shares: list[_Share]) -> None:
        for request, _, _, end, sampled, _ in shares:
            request.in_flight += 1
            request.computed = end
            request.tokens.extend(sampled)
            self._commit(request, min(end, len(request.prefix.tokens)), self.newest)
        self.flights.append(_Flight(self.newest, shares))

    def _commit(self, request: Running, tokens: int, step: int) -> None:
        if tokens <= request.committed:
            return
        request.committed = tokens
        self.seen["pass"] += self.device.nullify(
            request, self.cache.commit(request.uid, tokens, step)
        )

    def _fail(self, shares: list[_Share]) -> None:
        """The newest step turns out not to have run; its requests end."""
        self.seen["revoke"] += 1
        self.cache.revoke(self.newest)
        for share in shares:
            self.cache.free(share.request.uid, self.newest)
            self._end(share.request)

    @precondition(lambda self: self.flights)
    @rule()
    def settle(self) -> None:
        """The oldest step's tokens arrive, and it is complete."""
        step, shares = self.flights.popleft()
        for share in shares:
            request = share.request
            request.in_flight -= 1
            if request.ended:
                continue
            request.prefix.tokens.extend(share.sampled)
            exact = share.end
            if share.drafting:
                request.drafting = False
                exact = len(request.prefix.tokens) - 1
            if request.is_open and share.admission == request.admission:
                if share.drafting:
                    request.computed = exact
                    self._shrink(request, exact, step)
                self._commit(request, min(exact, len(request.prefix.tokens) - 1), step)
        self.complete = step
        self.cache.fence(step)
        self.device.touched.pop(step, None)

    def _shrink(self, request: Running, tokens: int, step: int) -> None:
        self.cache.shrink(request.uid, tokens, step)
        if tokens < request.granted:
            request.granted = tokens
            for table in request.tables:
                del table[self._pages(tokens) :]

    @precondition(lambda self: self._open())
    @rule(pick=_PICK, spare=st.integers(0, 8))
    def reserve_and_return(self, pick: int, spare: int) -> None:
        """A request gets more capacity than it needs, and gives it back."""
        request = _pick(self._open(), pick)
        if self._allocate(request, request.computed + spare) and not request.drafting:
            self._shrink(request, request.computed, self.newest)

    @precondition(lambda self: self.requests)
    @rule(pick=_PICK, hold=st.sampled_from([False, False, True]), forget=st.booleans())
    def end(self, pick: int, hold: bool, forget: bool) -> None:
        """A request finishes or is aborted, wherever it is."""
        request = _pick(self.requests, pick)
        if request.is_open:
            lease = f"lease {request.uid}" if hold else ""
            self.cache.free(request.uid, self.newest, hold=lease, forget=forget)
            if hold:
                self.device.leased[lease] = self.device.pages_of(request)
            if forget:
                self.device.distrusted.add(request.writer)
            self.seen["hold"] += hold
            self.seen["forget"] += forget
        self._end(request)

    def _end(self, request: Running) -> None:
        request.ended = True
        request.close()
        self.requests.remove(request)

    @precondition(lambda self: self._open())
    @rule(pick=_PICK)
    def preempt(self, pick: int) -> None:
        """A request loses its pages and waits, under the same name."""
        request = _pick(self._open(), pick)
        self.cache.free(request.uid, self.newest)
        request.close()
        self.seen["preempt"] += 1

    @precondition(lambda self: self._open() and len(self.requests) < _MOST_REQUESTS)
    @rule(pick=_PICK, back=st.integers(0, 3), token=st.sampled_from([7, 8, 9]))
    def fork(self, pick: int, back: int, token: int) -> None:
        """A request continues as two."""
        parent = _pick(self._open(), pick)
        at = max(0, min(parent.computed, len(parent.prefix.tokens)) - back)
        if parent.drafting or not self._keeps(parent, at):
            return
        own = parent.prefix
        child = self._new(Prefix(own.tokens[:at] + [token], own.salt, own.adapter))
        before = self.cache.usage()
        result = self.cache.fork(parent.uid, child.uid, child.prefix, at)
        if isinstance(result, NoSpace):
            assert self.cache.usage() == before, f"after {result} the usage has changed"
            self._end(child)
            return
        child.admission += 1
        self.device.apply(child, result, at, self._open())
        child.granted = at
        self._opened(child, at)
        self.seen["copy"] += bool(result.copies)
        partial = at % self.spec.page_tokens > 0
        assert bool(result.copies) == partial, f"a fork at {at} tokens brings {result.copies}"

    def _keeps(self, request: Running, at: int) -> bool:
        """Whether a request still holds what a query at `at` sees, and all pages before."""
        size = self.spec.page_tokens
        for group, table in zip(self.spec.groups, request.tables, strict=True):
            first = max(0, at - group.window + 1) if group.window else 0
            if 0 in table[first // size : self._pages(at)]:
                return False
        return True

    @rule(pool=_PICK, pages=st.integers(0, 6))
    def evict(self, pool: int, pages: int) -> None:
        """Somebody asks for cached pages to be dropped."""
        pool %= len(self.spec.groups)
        before = self.cache.usage()[pool]
        done = self.cache.evict(pool, pages)
        after = self.cache.usage()[pool]
        assert done == min(pages, before.evictable), f"{done} pages of {pages} went, from {before}"
        assert after.free == before.free + done, f"{done} pages went, and {before} became {after}"

    @precondition(lambda self: self.device.leased)
    @rule(pick=_PICK)
    def release(self, pick: int) -> None:
        """A lease ends."""
        name = _pick(list(self.device.leased), pick)
        self.cache.release(name)
        del self.device.leased[name]

    @precondition(lambda self: self.requests)
    @rule(pick=_PICK, limit=st.integers(0, 20), salt=st.sampled_from(["", "a"]))
    def probe(self, pick: int, limit: int, salt: str) -> None:
        """Whatever a match finds can be adopted, and is right."""
        model = _pick(self.requests, pick).prefix
        request = self._new(Prefix(list(model.tokens), salt, model.adapter))
        hit = self._match(request.prefix, min(limit, len(model.tokens)))
        epoch = self.cache.epoch
        again = self.cache.match(request.prefix, min(limit, len(model.tokens)))
        assert (again.ready, self.cache.epoch) == (hit.ready, epoch), "a match changed something"
        if hit.ready:
            assert self._allocate(request, hit.ready, hit), "a hit without new pages was refused"
            self._opened(request, hit.ready)
            self.device.check_trusted(request, hit.ready)
            self.cache.free(request.uid, self.newest)
        self._end(request)

    @precondition(lambda self: self._open() and self.flights)
    @rule(pick=_PICK, tokens=st.integers(1, 24))
    def wait_for_space(self, pick: int, tokens: int) -> None:
        """After a `Wait` and its step, there is space."""
        request = _pick(self._open(), pick)
        if request.drafting:
            return
        tokens = max(tokens, request.granted)
        result = self.cache.allocate(request.uid, request.prefix, tokens)
        if isinstance(result, Delta):
            self.device.apply(request, result, request.granted, self._open())
            request.granted = tokens
        elif isinstance(result, Wait):
            while self.complete < result.ticket and self.flights:
                self.settle()
            assert self._allocate(request, tokens), f"{result} was in vain"


    @invariant()
    def the_books_balance(self) -> None:
        """Every page is in one class, and those in tables are in use."""
        broken = self.cache.check_integrity()
        assert not broken, "; ".join(broken)
        held: set[PageId] = set()
        for request in self._open():
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

    def teardown(self) -> None:
        """At idle nothing is in use, and everything can be had back."""
        if sys.exc_info()[0] is not None:
            return  # a rule failed: that is the news
        while self.flights:
            self.settle()
        for request in self._open():
            self.cache.free(request.uid, self.newest)
        for name in self.device.leased:
            self.cache.release(name)
        self.cache.fence(self.newest)
        for pool, one in enumerate(self.cache.usage()):
            assert not one.in_use and not one.pinned, f"pool {pool} is in use at idle: {one}"
            assert self.cache.evict(pool, one.total) == one.evictable, f"pool {pool}: {one}"
            assert self.cache.usage()[pool].free == one.total, f"pool {pool} lost pages"


def _pick(items: list[T], pick: int) -> T:
    return items[pick % len(items)]
