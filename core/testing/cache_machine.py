"""Random use of a KV manager: any order of what a core may do, with steps in flight.

Whatever the manager decides, each request must find its own keys in its own table, pages must not
change hands too early, and the books must balance. `ModelCore` asserts it.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ..contracts.cache import CacheSpec, GroupSpec, Prefix
from ..request import EVERYWHERE, CacheScope
from .cache_core import ModelCore
from .cache_tiers import PAGE_BYTES, Tiers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..contracts.cache import KVManager
    from ..contracts.eviction import EvictionPolicy
    from .cache_device import Running

T = TypeVar("T")

_TEXTS = ([7] * 16, [7] * 6 + [8] * 10, [7] * 6 + [7, 9] * 5)
"""What prompts begin with: few and alike, so that they have pages in common, and weak hashes."""

_SCOPES = (
    EVERYWHERE,
    CacheScope("n", 1),
    CacheScope("n", 2),
    CacheScope("n", 1, 60.0),
    CacheScope("n", 2, 20.0),
)
_SCOPE = st.integers(0, len(_SCOPES) - 1)

_WINDOWS = [(0,), (0, 3), (0, 2, 6), (0,), (5, 0), (4,), (0, 1)]
_PICK = st.integers(0, 7)
_TOKEN = st.sampled_from([7, 8, 9])
_CHUNK = st.integers(1, 8)
_MOST_REQUESTS = 6
_MOST_IN_FLIGHT = 3


class CacheMachine(RuleBasedStateMachine):
    """Rules are what a core may do; the invariant holds after each."""

    def __init__(
        self,
        make: Callable[[CacheSpec], KVManager],
        kinds: Collection[str],
        seen: Counter[str],
        eviction: Callable[[], EvictionPolicy],
        *,
        expires: bool,
    ) -> None:
        """Prepare a run.

        Args:
            make: Makes the manager.
            kinds: Of group that it serves.
            seen: Counts what happened, over all runs.
            eviction: Makes the policy of each pool.
            expires: Whether that lets pages expire.
        """
        super().__init__()
        self.make = make
        self.kinds = kinds
        self.seen = seen
        self.eviction = eviction
        self.expires = expires

    @initialize(
        page_tokens=st.sampled_from([4, 2, 1]),
        windows=st.sampled_from(_WINDOWS),
        pages=st.integers(5, 20),
        prefix=st.sampled_from([True, True, True, False]),
        scoped=st.sampled_from([False, True, False]),
    )
    def start(
        self, page_tokens: int, windows: tuple[int, ...], pages: int, prefix: bool, scoped: bool
    ) -> None:
        """Make the manager."""
        self.scoped = scoped
        if "sliding" not in self.kinds:
            windows = (0,) * len(windows)
        groups = tuple(
            GroupSpec("sliding" if window else "full", pages + place, window, (place,), PAGE_BYTES)
            for place, window in enumerate(windows)
        )
        seconds, tiers = count(1), Tiers()
        spec = CacheSpec(
            page_tokens,
            groups,
            b"model",
            prefix,
            self.eviction,
            lambda: float(next(seconds)),
            tiers.posted.append,
            tiers.tray,
        )
        cache = self.make(spec)
        self.core = ModelCore(cache, spec, self.seen, expires=self.expires, tiers=tiers)

    def _prefix(
        self, tokens: list[int], salt: str, adapter: int, scope: int, priority: int = 0
    ) -> Prefix:
        """Return a prefix; in a run some differ in salt and adapter, or else in their scope."""
        if self.scoped:
            return Prefix(tokens, priority=priority, scope=_SCOPES[scope])
        return Prefix(tokens, salt, adapter, priority)

    @precondition(lambda self: len(self.core.requests) < _MOST_REQUESTS)
    @rule(
        text=st.sampled_from(_TEXTS),
        length=st.integers(1, 16),
        tail=st.lists(_TOKEN, max_size=2),
        salt=st.sampled_from(["", "", "", "a"]),
        adapter=st.sampled_from([0, 0, 0, 1]),
        priority=st.integers(-1, 1),
        scope=_SCOPE,
    )
    def arrive(
        self,
        text: list[int],
        length: int,
        tail: list[int],
        salt: str,
        adapter: int,
        priority: int,
        scope: int,
    ) -> None:
        """A request comes."""
        tokens = text[:length] + tail
        self.core.arrive(self._prefix(tokens, salt, adapter, scope, priority))

    @precondition(lambda self: self.core.requests)
    @rule(chunks=st.lists(_CHUNK, min_size=1, max_size=5), token=_TOKEN)
    def turn(self, chunks: list[int], token: int) -> None:
        """The core does some ordinary turns: admit one, launch all, settle the oldest."""
        for chunk in chunks:
            self.core.poll()
            if self.core.waiting:
                self.core.admit(self.core.waiting[0], chunk)
            if len(self.core.flights) < _MOST_IN_FLIGHT:
                self.core.launch([(one, chunk) for one in self.core.ready], token)
            if len(self.core.flights) > 1:
                self.core.settle()
            self.core.push()

    @precondition(lambda self: self.core.waiting)
    @rule(pick=_PICK, chunk=_CHUNK)
    def admit(self, pick: int, chunk: int) -> None:
        """A waiting request gets its hit and pages."""
        self.core.admit(_pick(self.core.waiting, pick), chunk)

    @precondition(lambda self: self.core.ready and len(self.core.flights) < _MOST_IN_FLIGHT)
    @rule(picks=st.lists(st.tuples(_PICK, _CHUNK), min_size=1, max_size=3), token=_TOKEN)
    def launch(self, picks: list[tuple[int, int]], token: int) -> None:
        """A step is launched."""
        chosen: dict[Running, int] = {}
        for pick, chunk in picks:
            chosen.setdefault(_pick(self.core.ready, pick), chunk)
        self.core.launch(list(chosen.items()), token)

    @precondition(lambda self: self.core.ready and len(self.core.flights) < _MOST_IN_FLIGHT)
    @rule(pick=_PICK, chunk=st.integers(4, 16))
    def launch_in_vain(self, pick: int, chunk: int) -> None:
        """A step is launched, and turns out not to have run."""
        self.core.launch([(_pick(self.core.ready, pick), chunk)], 7, fails=True)

    @precondition(lambda self: self.core.ready and len(self.core.flights) < _MOST_IN_FLIGHT)
    @rule(pick=_PICK, drafts=st.integers(1, 4), accepted=st.integers(0, 4))
    def speculate(self, pick: int, drafts: int, accepted: int) -> None:
        """A step verifies drafts."""
        self.core.speculate(_pick(self.core.ready, pick), drafts, accepted)

    @precondition(lambda self: self.core.flights)
    @rule()
    def settle(self) -> None:
        """The oldest step completes."""
        self.core.settle()

    @precondition(lambda self: self.core.open)
    @rule(pick=_PICK, spare=st.integers(0, 8))
    def reserve_and_return(self, pick: int, spare: int) -> None:
        """A request gets more capacity than it needs, and gives it back."""
        request = _pick(self.core.open, pick)
        if self.core.allocate(request, request.computed + spare) and not request.drafting:
            self.core.shrink(request, request.computed, self.core.newest)

    @precondition(lambda self: self.core.requests)
    @rule(pick=_PICK, hold=st.sampled_from([False, False, True]), forget=st.booleans())
    def end(self, pick: int, hold: bool, forget: bool) -> None:
        """A request finishes or is aborted."""
        self.core.end(_pick(self.core.requests, pick), hold=hold, forget=forget)

    @precondition(lambda self: self.core.lost)
    @rule(pick=_PICK)
    def distrust(self, pick: int) -> None:
        """A step in flight is seen to be wrong for a request that has no pages any more."""
        self.core.distrust(_pick(self.core.lost, pick))

    @precondition(lambda self: self.core.open)
    @rule(pick=_PICK)
    def preempt(self, pick: int) -> None:
        """A request loses its pages and waits."""
        self.core.preempt(_pick(self.core.open, pick))

    @precondition(lambda self: self.core.open and len(self.core.requests) < _MOST_REQUESTS)
    @rule(pick=_PICK, back=st.integers(0, 3), token=_TOKEN)
    def fork(self, pick: int, back: int, token: int) -> None:
        """A request continues as two."""
        parent = _pick(self.core.open, pick)
        at = min(parent.computed, len(parent.prefix.tokens)) - back
        self.core.fork(parent, max(0, at), token)

    @precondition(lambda self: any(one.evictable for one in self.core.cache.usage()))
    @rule(pool=_PICK, pages=st.integers(0, 6))
    def evict(self, pool: int, pages: int) -> None:
        """Somebody asks for cached pages to be dropped."""
        self.core.evict(pool % len(self.core.spec.groups), pages)

    @precondition(lambda self: self.core.device.leased)
    @rule(pick=_PICK)
    def release(self, pick: int) -> None:
        """A lease ends."""
        self.core.release(_pick(list(self.core.device.leased), pick))

    @precondition(lambda self: self.core.complete)
    @rule(
        text=st.sampled_from(_TEXTS),
        limit=st.integers(0, 16),
        salt=st.sampled_from(["", "", "a"]),
        adapter=st.sampled_from([0, 0, 1]),
        scope=_SCOPE,
    )
    def probe(self, text: list[int], limit: int, salt: str, adapter: int, scope: int) -> None:
        """Somebody looks what is cached."""
        self.core.probe(self._prefix(list(text), salt, adapter, scope), limit)

    @precondition(lambda self: self.core.open and self.core.flights)
    @rule(pick=_PICK, tokens=st.integers(1, 24))
    def wait_for_space(self, pick: int, tokens: int) -> None:
        """A request asks for much, and waits for it."""
        request = _pick(self.core.open, pick)
        if not request.drafting:
            self.core.wait_for_space(request, tokens)

    @invariant()
    def the_books_balance(self) -> None:
        """See `ModelCore.check_books`."""
        self.core.check_books()

    def teardown(self) -> None:
        """See `ModelCore.finish`."""
        if sys.exc_info()[0] is None:  # else a rule has failed, and that is the news
            self.core.finish()


class TieredCacheMachine(CacheMachine):
    """The same for a manager with tiers, whose moves end late, or in vain."""

    @precondition(lambda self: self.core.tiers.under_way or self.core.tiers.posted)
    @rule(most=st.integers(0, 3), ok=st.sampled_from([True, True, True, False]))
    def moves_end(self, most: int, ok: bool) -> None:
        """Callbacks are run and the oldest moves end."""
        self.core.poll(most, ok=ok)

    @rule()
    def idle_turn(self) -> None:
        """The core does a turn without a step."""
        self.core.push()

    @precondition(lambda self: self.core.waiting)
    @rule(pick=_PICK)
    def prefetch(self, pick: int) -> None:
        """The turn of a waiting request is near."""
        self.core.prefetch(_pick(self.core.waiting, pick))

    @precondition(lambda self: len(self.core.requests) < _MOST_REQUESTS - 1)
    @rule(
        text=st.sampled_from(_TEXTS),
        length=st.integers(6, 16),
        token=_TOKEN,
        moves=st.sampled_from(["ended", "ended", "under way", "failed"]),
        forget=st.sampled_from([False, False, False, True]),
        scope=_SCOPE,
    )
    def come_back(
        self, text: list[int], length: int, token: int, moves: str, forget: bool, scope: int
    ) -> None:
        """A request is served, the device loses its pages, and its text comes again."""
        core, tokens = self.core, text[:length]
        request = core.arrive(self._prefix(list(tokens), "", 0, scope))
        if core.admit(request, length):
            core.launch([(request, length)], token)
        core.end(request, forget=forget)
        while core.flights:
            core.settle()
        core.push()
        if moves != "under way":
            core.poll(ok=moves == "ended")
        for pool, usage in enumerate(core.cache.usage()):
            core.evict(pool, usage.evictable)
        again = core.arrive(self._prefix([*tokens, token], "", 0, scope))
        core.admit(again, 1)

    @precondition(lambda self: self.core.open)
    @rule(pick=_PICK)
    def swap_out(self, pick: int) -> None:
        """A request loses its pages, and a tier is to keep them for it."""
        self.core.preempt(_pick(self.core.open, pick), swap=True)

    @precondition(lambda self: self.core.open)
    @rule(pick=_PICK, chunk=_CHUNK, moves=st.sampled_from(["ended", "ended", "late", "failed"]))
    def swap_out_and_in(self, pick: int, chunk: int, moves: str) -> None:
        """A request is swapped out, the device loses its pages, and it gets its turn again."""
        core = self.core
        core.push()  # what it is still to be filled with
        core.preempt(request := _pick(core.open, pick), swap=True)
        while core.flights:
            core.settle()
        for pool, usage in enumerate(core.cache.usage()):
            core.evict(pool, usage.evictable)
        for _ in range(4):
            if request in core.waiting:
                core.admit(request, chunk)
            core.push()
            if moves != "late":
                core.poll(ok=moves == "ended")

    @precondition(lambda self: self.core.transferring)
    @rule(pick=_PICK)
    def abort(self, pick: int) -> None:
        """A request ends that waits for a transfer."""
        coming = self.core.transferring
        if coming:  # it may have ended by itself while it was asked for
            self.core.end(_pick(coming, pick))


def _pick(items: list[T], pick: int) -> T:
    return items[pick % len(items)]
