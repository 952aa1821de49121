"""Modular reuse: requests composed of modules that were computed alone, around any other cache.

Source: Gim et al., "Prompt Cache: Modular Attention Reuse for Low-Latency Inference", MLSys 2024
(arXiv 2311.04934), section 3. Departures: pages are shared, where the paper copies states; a module
is known by its tokens and position, so that schemas share it too; and what follows a set of modules
is found again as well.

The cache below knows nothing of modules: to it a request with some is several, each with an origin
that isolates it (`Prefix.origin`). All but the last adopt pages and never grow.

    table of a request     [pages of module 1][pages of module 2][its own pages ...]
    requests below         uid -7             uid -8             its own uid

Pages that turn out to be wrong are forgotten below; what followed them cannot be told from what
followed right ones, so it is forgotten as a whole, by a new generation of origins.
"""

from __future__ import annotations

from itertools import count
from secrets import randbits
from typing import TYPE_CHECKING, NamedTuple

from camshaft.contracts.cache import EMPTY_DELTA, Delta, Hit, KVManager, NoSpace, Wait
from camshaft.errors import CamshaftError

from .parts import Parts, take_apart

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from camshaft.contracts.cache import CacheEvent, CacheSpec, GroupKind, PoolUsage, Prefix
    from camshaft.contracts.moves import Moved, Moves

    from ..components import ModularSettings

_MEMO = "modules"
_AGAIN = Wait(0)
"""Step 0 is complete: the request is matched anew in the next turn."""


class _Found(NamedTuple):
    """The handle of a hit: one of the cache below for each part."""

    epoch: int
    modules: list[Hit]
    own: Hit


class Modular(KVManager):
    """See the module.

    Attributes:
        below: Has the pages.
        requests: Open requests that have runs, by uid.
    """

    def __init__(self, settings: ModularSettings, spec: CacheSpec) -> None:
        """Make the cache below.

        Raises:
            CamshaftError: It does not fit.
        """
        kinds = {group.kind for group in spec.groups}
        below: type[KVManager] = settings.over.component.load()
        name = settings.over.name
        faults = [f"over '{name}': {one}" for one in below.supports(spec.page_tokens, kinds)]
        if faults:
            raise CamshaftError(f"cache 'modular' cannot serve this: {'; '.join(faults)}.")
        self.below: KVManager = settings.over.build(spec)
        self.no_modules = "" if spec.prefix else "they are found as prefixes are, which are off"
        self.has_tiers = self.below.has_tiers
        self.requests: dict[int, Parts] = {}
        self._page_tokens = spec.page_tokens
        self._generation = randbits(32)  # files below outlive what is known here of wrong pages
        self._uids = count(-1, -1)

    @classmethod
    def supports(cls, page_tokens: int, kinds: Collection[GroupKind]) -> list[str]:
        """See `KVManager.supports`."""
        return [
            f"the model has {one} layers, which count tokens where modules leave gaps between "
            "positions. Choose another cache."
            for one in sorted(set(kinds) - {"full"})
        ]

    @property
    def epoch(self) -> int:  # type: ignore[override]  # the contract has an attribute
        """See `KVManager.epoch`."""
        return self.below.epoch + self._generation

    def match(self, prefix: Prefix, limit: int) -> Hit:
        """See `KVManager.match`. Without all of its modules a request finds nothing."""
        if not prefix.runs:
            return self.below.match(prefix, limit)
        parts = self._parts(prefix)
        modules = []
        for module in parts.modules:
            length = len(module.prefix.tokens)
            hit = self.below.match(module.prefix, length)
            if hit.ready < length:
                return Hit(0)
            modules.append(hit)
        if limit < parts.before:
            return Hit(0)
        own = self.below.match(parts.follow(), limit - parts.before)
        found = _Found(self.epoch, modules, own)
        return Hit(parts.before + own.ready, own.loading, found)

    def _parts(self, prefix: Prefix) -> Parts:
        known: Parts | None = prefix.memo.get(_MEMO)
        if known is None or known.generation != self._generation:
            known = prefix.memo[_MEMO] = take_apart(prefix, self._uids, self._generation)
        return known

    def allocate(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None = None
    ) -> Delta | Wait | NoSpace:
        """See `KVManager.allocate`.

        Raises:
            ValueError: The hit is stale, too long, lacks modules, or comes for an open request.
        """
        if not prefix.runs:
            return self.below.allocate(uid, prefix, tokens, hit)
        parts = self.requests.get(uid)
        if parts is None:
            return self._open(uid, prefix, tokens, hit)
        if hit is not None and hit.ready:
            raise ValueError(f"request {uid} is open: a hit comes with its first allocation")
        return self._behind(parts, self.below.allocate(uid, parts.follow(), tokens - parts.before))

    def _open(
        self, uid: int, prefix: Prefix, tokens: int, hit: Hit | None
    ) -> Delta | Wait | NoSpace:
        parts, found = self._parts(prefix), self._checked(hit, tokens)
        if found is None and parts.modules:
            raise ValueError(f"request {uid} is opened without its modules; match them first")
        opened = self._open_modules(parts, found.modules if found is not None else [])
        if not isinstance(opened, list):
            return opened
        own = found.own if found is not None else None
        result = self.below.allocate(uid, parts.follow(), tokens - parts.before, own)
        if not isinstance(result, Delta):
            self._close(parts, len(opened))
            return result
        self.requests[uid] = parts
        return self._joined(parts, [*opened, result])

    def _checked(self, hit: Hit | None, tokens: int) -> _Found | None:
        """Return the handle of a hit that may be adopted, or None if there is nothing to adopt."""
        if hit is None or hit.handle is None:
            return None
        if not isinstance(hit.handle, _Found) or hit.handle.epoch != self.epoch:
            raise ValueError("the hit is not of the present epoch; match again")
        if hit.ready > tokens:
            raise ValueError(f"the hit brings {hit.ready} tokens to an allocation for {tokens}")
        return hit.handle

    def _open_modules(self, parts: Parts, hits: list[Hit]) -> list[Delta] | Wait | NoSpace:
        """Open the request of each module below, all or none."""
        epoch, opened = self.below.epoch, list[Delta]()
        for module, hit in zip(parts.modules, hits, strict=True):
            length = len(module.prefix.tokens)
            result = self.below.allocate(module.uid, module.prefix, length, hit)
            if isinstance(result, Delta):
                opened.append(result)
                if self.below.epoch == epoch:
                    continue
                result = _AGAIN  # the first of a version outdates others: the hits are stale
            self._close(parts, len(opened))
            return result
        return opened

    def _close(self, parts: Parts, opened: int) -> None:
        """Undo the opening of the first modules; no step knows of them."""
        for module in parts.modules[:opened]:
            self.below.free(module.uid, 0)

    def _joined(self, parts: Parts, deltas: Sequence[Delta]) -> Delta:
        """Join what the device must learn of all parts, modules first."""
        first = [run.first // self._page_tokens for run in parts.prefix.runs]
        writes = [
            write._replace(first=write.first + begin)
            for begin, delta in zip(first, deltas, strict=True)
            for write in delta.writes
        ]
        return Delta(tuple(writes), tuple(one for delta in deltas for one in delta.copies))

    def _behind(self, parts: Parts, result: Delta | Wait | NoSpace) -> Delta | Wait | NoSpace:
        """Move a result for a request's own pages behind those of its modules."""
        if not isinstance(result, Delta) or result is EMPTY_DELTA or not parts.before:
            return result
        begin = parts.before // self._page_tokens
        writes = tuple(one._replace(first=one.first + begin) for one in result.writes)
        return Delta(writes, result.copies)

    def commit(self, uid: int, tokens: int, step: int) -> Delta:
        """See `KVManager.commit`. Modules were committed by who computed them."""
        parts = self.requests.get(uid)
        if parts is None:
            return self.below.commit(uid, tokens, step)
        parts.follow()
        delta = self.below.commit(uid, max(0, tokens - parts.before), step)
        moved = self._behind(parts, delta)
        assert isinstance(moved, Delta)
        return moved

    def revoke(self, step: int) -> None:
        """See `KVManager.revoke`."""
        self._generation += 1
        self.below.revoke(step)

    def shrink(self, uid: int, tokens: int, step: int) -> None:
        """See `KVManager.shrink`.

        Raises:
            ValueError: `tokens` is less than what is committed.
        """
        parts = self.requests.get(uid)
        before = 0 if parts is None else parts.before
        if tokens < before:
            raise ValueError(f"request {uid} cannot shrink to {tokens} tokens: it has modules")
        self.below.shrink(uid, tokens - before, step)

    def fork(self, parent: int, child: int, prefix: Prefix, at: int) -> Delta | NoSpace:
        """See `KVManager.fork`.

        Raises:
            ValueError: The child is open, or differs from the parent before `at`.
        """
        source = self.requests.get(parent)
        if source is None and not prefix.runs:
            return self.below.fork(parent, child, prefix, at)
        if source is None or prefix.runs != source.prefix.runs or at < source.before:
            raise ValueError(f"a fork of request {parent} does not have its modules")
        parts = take_apart(prefix, self._uids, source.generation)
        deltas: list[Delta] = []
        for old, new in zip(source.modules, parts.modules, strict=True):
            length = len(new.prefix.tokens)
            delta = self.below.fork(old.uid, new.uid, new.prefix, length)
            assert isinstance(delta, Delta), "a fork at the end of a page takes none"
            deltas.append(delta)
        try:
            own = self.below.fork(parent, child, parts.own, at - source.before)
        except ValueError:
            self._close(parts, len(deltas))
            raise
        if isinstance(own, NoSpace):
            self._close(parts, len(deltas))
            return own
        self.requests[child] = parts
        return self._joined(parts, [*deltas, own])

    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        """See `KVManager.free`.

        Raises:
            LookupError: The request is not open.
        """
        self._generation += forget
        self.below.free(uid, step, hold=hold, forget=forget)
        parts = self.requests.pop(uid, None)
        for module in () if parts is None else parts.modules:
            self.below.free(module.uid, step, hold=hold)

    def distrust(self, uid: int) -> None:
        """See `KVManager.distrust`."""
        self._generation += 1
        self.below.distrust(uid)

    def release(self, lease: str) -> None:
        """See `KVManager.release`.

        Raises:
            LookupError: There is no such lease.
        """
        self.below.release(lease)

    def fence(self, step: int) -> None:
        """See `KVManager.fence`."""
        self.below.fence(step)

    def evict(self, pool: int, pages: int) -> int:
        """See `KVManager.evict`."""
        return self.below.evict(pool, pages)

    def clear(self, *, tiers: bool = True) -> int:
        """See `KVManager.clear`."""
        return self.below.clear(tiers=tiers)

    def usage(self) -> tuple[PoolUsage, ...]:
        """See `KVManager.usage`."""
        return self.below.usage()

    def check_integrity(self) -> list[str]:
        """See `KVManager.check_integrity`."""
        broken = self.below.check_integrity()
        for uid, parts in self.requests.items():
            tokens = [one for module in parts.modules for one in module.prefix.tokens]
            if tokens + parts.follow().tokens != parts.prefix.tokens:
                broken.append(f"request {uid} has other tokens than its parts")
        return broken

    def events(self) -> list[CacheEvent]:
        """See `KVManager.events`."""
        return self.below.events()

    def withdraw(self, uid: int) -> None:
        """See `KVManager.withdraw`."""
        self.below.withdraw(uid)

    def prefetch(self, uid: int, prefix: Prefix, limit: int) -> None:
        """See `KVManager.prefetch`. Modules are brought for those who compute what lacks."""
        if not prefix.runs:
            self.below.prefetch(uid, prefix, limit)
        elif limit > (parts := self._parts(prefix)).before:
            self.below.prefetch(uid, parts.follow(), limit - parts.before)

    def is_coming(self, ticket: int) -> bool:
        """See `KVManager.is_coming`."""
        return self.below.is_coming(ticket)

    def take_moves(self) -> Moves:
        """See `KVManager.take_moves`."""
        return self.below.take_moves()

    def moved(self, ended: Sequence[Moved]) -> None:
        """See `KVManager.moved`."""
        self.below.moved(ended)

    def counters(self) -> dict[str, float]:
        """See `KVManager.counters`."""
        return self.below.counters()

    def close(self) -> None:
        """See `KVManager.close`."""
        self.below.close()
