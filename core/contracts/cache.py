"""KVManager: which pages hold the keys and values of which tokens. Host-side indices only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from ..request import EVERYWHERE, CacheScope
from .moves import NO_MOVES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .eviction import EvictionPolicy
    from .moves import Moved, Moves, Tray

GroupKind = Literal["full", "sliding", "state"]

NULL_PAGE = 0
"""Page that stands in tables where a sequence has no page (passed by a window, padding)."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """Layers that share a page table, with a pool of their own.

    Attributes:
        kind: `full` keeps all tokens, `sliding` the last `window`, `state` one state a request.
        pages: Pages in the pool, the null page not counted. Ids are 1 to `pages`.
        window: Tokens that a query sees, itself included; 0 unless `sliding`.
        layers: Indices of the model's layers.
        page_bytes: Bytes of one page over all layers of the group.
    """

    kind: GroupKind
    pages: int
    window: int = 0
    layers: tuple[int, ...] = ()
    page_bytes: int = 0


def _run_now(callback: Callable[[], None]) -> None:
    callback()


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What a manager manages.

    Attributes:
        page_tokens: Tokens of a manager page; a multiple of the kernel page of the attention.
        groups: One pool each; indices into this tuple name pools and groups.
        identity: Digest of everything that makes pages incompatible: model, dtype, layout.
        prefix: Whether finished prefixes may be reused.
        eviction: Makes a policy; called once for each pool.
        now: The engine's clock, seconds.
        post: Has a callback run on the engine's thread soon. May be called from any thread.
        tray: Makes host memory for so many pages of a group: `tray(group, pages)`. To be called
            on the engine's thread; slow. None where pages cannot leave the device.
    """

    page_tokens: int
    groups: tuple[GroupSpec, ...]
    identity: bytes
    prefix: bool
    eviction: Callable[[], EvictionPolicy]
    now: Callable[[], float]
    post: Callable[[Callable[[], None]], None] = _run_now
    tray: Callable[[int, int], Tray] | None = None


class Run(NamedTuple):
    """Tokens of a prefix from index `first` on; their positions count up from `position`."""

    first: int
    position: int


@dataclass(slots=True, eq=False)
class Prefix:
    """The known tokens of one request, as a cache key. Lives as long as the request.

    Attributes:
        tokens: Prompt and settled output ids. Grows at its end; never changes otherwise.
        salt: Isolates tenants.
        adapter: Isolates adapters.
        priority: The request's, for eviction.
        scope: Namespace, version and time to live.
        most_tokens: Length that it cannot exceed, by its `max_tokens`; 0 is unknown.
        runs: Empty for a text whose token i has position i. Else a run for each module, which is
            whole pages and knows nothing of what stands before it, and a last one, which knows
            all of them. A single run is a module by itself.
        origin: Isolates too: all else that keys and values depend on.
        memo: For the manager alone, such as digests of full pages.
    """

    tokens: list[int]
    salt: str = ""
    adapter: int = 0
    priority: int = 0
    scope: CacheScope = EVERYWHERE
    most_tokens: int = 0
    runs: tuple[Run, ...] = ()
    origin: bytes = b""
    memo: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hit:
    """The longest reusable prefix.

    Attributes:
        ready: Tokens whose pages are on the device, valid in all groups, or will be by a load that
            the next `take_moves` returns at the latest.
        loading: Further tokens that tiers hold and could bring.
        handle: For the manager alone; good until its `epoch` changes.
    """

    ready: int
    loading: int = 0
    handle: Any = None


class TableWrite(NamedTuple):
    """Set `pages` at indices `first`, `first + 1`, ... of a request's table in `group`."""

    group: int
    first: int
    pages: Sequence[int]


class PageCopy(NamedTuple):
    """Copy page `source` to page `target` of `group`, before the step's own writes."""

    group: int
    source: int
    target: int


class Delta(msgspec.Struct, frozen=True, gc=False):  # made for every grant: eight times as fast
    """What the device must learn before the next launch."""

    writes: tuple[TableWrite, ...] = ()
    copies: tuple[PageCopy, ...] = ()


EMPTY_DELTA = Delta()


@dataclass(frozen=True, slots=True)
class Wait:
    """Space will come by itself: ask again once step or transfer `ticket` is complete.

    Steps count from 1, transfers have negative tickets. While `KVManager.is_coming` says that a
    transfer is under way, its request is not ready: schedulers pass over it.

    A first allocation may also be told to wait, although there is space, while other requests are
    open that will need it: until some of them have ended.
    """

    ticket: int


@dataclass(frozen=True, slots=True)
class NoSpace:
    """The pool lacks `short` pages even after evicting: somebody must give way."""

    pool: int
    short: int


class PoolUsage(NamedTuple):
    """Pages of one pool; `free + evictable + in_use + pinned == total` at all times.

    `free + evictable` can be had at once: no step in flight touches them.

    Attributes:
        total: All but the null page.
        free: Hold nothing.
        evictable: Cached and unused.
        in_use: In a request's table.
        pinned: Freed but fenced, held by a lease, or being filled for a request that waits for it.
    """

    total: int
    free: int
    evictable: int
    in_use: int
    pinned: int


class CacheEvent(NamedTuple):
    """A change of what is cached where, for observers and routers.

    Attributes:
        kind: Pages of the device became matchable (`stored`) or were dropped (`evicted`); a tier
            brought them to the device (`loaded`) or got them (`demoted`).
        pool: Index of the group.
        pages: How many.
        reason: Why, or the name of the tier.
    """

    kind: Literal["stored", "evicted", "loaded", "demoted"]
    pool: int
    pages: int
    reason: str


class SwapCost(NamedTuple):
    """What it would take to preempt a request by swap.

    Attributes:
        tokens: That would not have to be computed again, and would after a preemption by recompute,
            should the device reuse all its pages meanwhile.
        seconds: To bring their keys and values back, as far as that was measured; 0 if not.
    """

    tokens: int
    seconds: float


class KVManager(ABC):
    """Owns pages and decides what is reused. Constructed as `Manager(settings, spec)`.

    The core calls it from one thread and names requests by `uid`, an integer that is never reused.
    It grants *capacity*: `allocate` is called only when a request's length, counted with everything
    in flight, would exceed what was granted, and where pages are small it asks for some tokens at
    once. It never touches the device: deltas tell what to do, and the core puts them before the
    launch that needs them.

    Life of a request: `match`, `allocate` (with the hit), then for each step `allocate` if longer
    and `commit`, at last `free`. After `free` the uid is unknown; a preempted request starts anew.

    Salt, adapter, namespace and version isolate: a page serves only those who agree in all four.
    `CacheScope` says which pages are outdated or too old to be served; a newer version counts as
    seen once `allocate` has opened a request of it.

    A manager with tiers below the device moves pages: it returns moves from `take_moves`, which the
    core calls before every launch and in turns without one, and hears of their end by `moved`. A
    page counts as filled as soon as its load was returned: the executor orders whatever is launched
    later behind it.

    Attributes:
        epoch: Changes whenever the result of a `match` may have changed, but for the passing of
            time: pages become too old by themselves, and matches shorter.
        no_modules: Why it takes no prefix with `runs`; empty if it does.
        has_tiers: Whether it moves pages. `take_moves` and `prefetch` are called only if so.
        no_swap: Why it keeps nothing of its own for a preempted request; empty if it does.
    """

    epoch: int
    no_modules: str = "this cache does not compose modules; 'modular' over it does"
    has_tiers: bool = False
    no_swap: str = "this cache has no place for pages of preempted requests; 'tiered' over it does"

    @classmethod
    def supports(cls, page_tokens: int, kinds: Collection[GroupKind]) -> list[str]:
        """Say why this manager cannot serve a recipe, each reason with its cure; empty if it can.

        Args:
            page_tokens: Tokens in a page.
            kinds: Kinds of the groups.
        """
        return []

    @abstractmethod
    def match(self, prefix: Prefix, limit: int) -> Hit:
        """Find the longest cached prefix of `prefix.tokens`. Changes nothing.

        Args:
            prefix: The request's tokens.
            limit: Most tokens to reuse. The core passes the number of tokens less one, since at
                least one has to be computed.

        Returns:
            A hit with `ready + loading <= limit`, a prefix that is valid in every group at once.
            It may be adopted at the present epoch even if its pages become too old meanwhile.
        """

    @abstractmethod
    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        """Grant capacity for the first `tokens` positions. All or nothing.

        Args:
            uid: The request; unknown ones are opened.
            prefix: Its tokens.
            tokens: Positions that must have a page, an upper bound.
            hit: With a first call: the result of `match` at the present epoch; its `ready` tokens
                are adopted and count towards `tokens`. They include all modules of `prefix.runs`.

        Returns:
            A delta; `Wait` if fenced pages or a transfer suffice; else `NoSpace`. Cached pages
            are evicted as needed. After `Wait` or `NoSpace` nothing has changed, but for pages
            that a transfer fills: they are pinned.
        """

    @abstractmethod
    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """Declare that `step` writes (or wrote) the keys and values of `prefix.tokens[:tokens]`.

        Called when the step is launched for tokens that the host knows (prompts) and when it is
        settled for generated ones, for these some tokens at a time where pages are small. Full
        pages of what was known when the request was opened become matchable now: later steps run
        after it. Others do so when it is freed or forked, at the latest.
        Pages that a window has passed may be given up, fenced by `step`.

        Returns:
            Writes that put the null page, or the page of an equal run, into the table.
        """

    @abstractmethod
    def revoke(self, step: int) -> None:
        """Forget what `commit` made matchable for a step whose launch failed."""

    @abstractmethod
    def shrink(self, uid: int, tokens: int, step: int) -> None:
        """Take back capacity beyond `tokens` positions, fenced by `step`.

        What was granted ahead and is in no step comes back with step 0, when others need it.
        """

    @abstractmethod
    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        """Open `child` with the first `at` tokens of `parent`.

        Full pages are shared; a page that both would write is copied. The next step reads the
        source of that copy: who frees the parent before its launch names that step.
        """

    @abstractmethod
    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """Release the request's pages.

        Args:
            uid: The request.
            step: The newest step that may still read or write them. Reuse waits for its fence, and
                for nothing if that has been.
            hold: Name of a lease that keeps the pages pinned until `release`, or empty.
            forget: What the request wrote, before it was preempted too, is not to be trusted: it
                is no longer matchable, nor is what was computed from it.

        Raises:
            LookupError: The uid is unknown, or was freed before.
        """

    @abstractmethod
    def distrust(self, uid: int) -> None:
        """Forget what a request wrote, as `free` does with `forget`, now that it was freed.

        Called where a step turns out to have been wrong for a request that lost its pages while it
        was in flight: before its fence, and before the request is opened again.
        """

    @abstractmethod
    def release(self, lease: str) -> None:
        """End a lease.

        Raises:
            LookupError: There is none of that name.
        """

    @abstractmethod
    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete: their pages may be reused."""

    @abstractmethod
    def evict(self, pool: int, pages: int) -> int:
        """Drop up to `pages` cached pages of a pool; return how many became free."""

    def clear(self, *, tiers: bool = True) -> int:
        """Drop every cached page that no request uses; return how many of the device.

        Args:
            tiers: Whether tiers are to lose theirs, too. What they keep for preempted requests
                alone is in use.
        """
        return sum(self.evict(pool, one.evictable) for pool, one in enumerate(self.usage()))

    @abstractmethod
    def usage(self) -> tuple[PoolUsage, ...]:
        """Return the state of each pool, in the order of the spec's groups."""

    @abstractmethod
    def check_integrity(self) -> list[str]:
        """Return every broken invariant in words; empty when all is well. May be slow."""

    @abstractmethod
    def events(self) -> list[CacheEvent]:
        """Return and forget what happened since the last call."""

    def swap(self, uid: int, tokens: int, step: int) -> bool:
        """Keep a copy of what an open request has computed, which only it gets back.

        Its `free` follows at once. The next `match` of the same `Prefix` finds the copy, first as
        `loading`, and `ready` need not be whole pages then. The copy is gone when the request is
        opened again or withdrawn. Tiers may lose it before: then it is computed.

        Args:
            uid: The request.
            tokens: Leading tokens that steps launched so far have written, whether their ids are
                known yet or not. When it is opened again they are, or there are fewer.
            step: The newest launched one. What it writes is in the copy.

        Returns:
            False if there is no copy: the request is computed again, which is counted as such.
        """
        return False

    def swap_cost(self, uid: int, tokens: int) -> SwapCost | None:
        """Return what `swap` would take at present; None if it would refuse."""
        return None

    def withdraw(self, uid: int) -> None:  # noqa: B027 - optional
        """Note that a waiting request ended: a transfer for it has no purpose any more.

        Called for every request that ends without pages, known to the manager or not.
        """

    def prefetch(self, uid: int, prefix: Prefix, limit: int) -> None:  # noqa: B027 - optional
        """Bring pages of a waiting request nearer, as far as that takes nothing from others.

        Called when the scheduler sees its turn coming, seldom twice; what is begun ends with
        `allocate` or `withdraw` of the uid.

        Args:
            uid: The request, which has no pages.
            prefix: Its tokens.
            limit: As in `match`.
        """

    def is_coming(self, ticket: int) -> bool:
        """Return whether the transfer of a `Wait` is under way. Cheap: asked in every turn.

        Once it is not, the request is asked for again. It must not stay so for ever: a transfer
        that takes too long is given up.
        """
        return False

    def take_moves(self) -> Moves:
        """Return and forget the moves that are to begin now. See `Moves` for their order.

        The pages of a load are in nobody's step: neither in flight nor launched before this call.
        """
        return NO_MOVES

    def moved(self, ended: Sequence[Moved]) -> None:  # noqa: B027 - optional
        """Note that moves have ended.

        Pages of a load that failed hold anything. Requests of the step that was to be launched
        with it have been freed with `forget`; others that count on these pages are the manager's.
        """

    def counters(self) -> dict[str, float]:
        """Return what happened so far by name, for metrics. None by default.

        Values never fall, except under names that end in `_held`: what is there now.
        """
        return {}

    def close(self) -> None:  # noqa: B027 - optional
        """Give back files and threads. No other call follows; no move is under way."""
