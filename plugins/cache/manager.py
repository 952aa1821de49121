"""What every manager here keeps in the same way: its open requests, its epoch and its events."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from camshaft.contracts.cache import CacheEvent, CacheSpec, KVManager

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

EVENTS_KEPT = 4096
"""Events kept for a reader that does not come; the oldest are lost first."""

Request = TypeVar("Request")


class Gone(NamedTuple):
    """Pages that were evicted, by why it was these.

    Attributes:
        version: Their namespace has a newer version.
        expired: They were too old.
        chosen: The policy gave them up.
    """

    version: int = 0
    expired: int = 0
    chosen: int = 0


class PageManager(KVManager, Generic[Request]):
    """The common part of managers; `Request` is what one keeps of an open request.

    Attributes:
        spec: What it manages.
        requests: The open requests by uid.
    """

    def __init__(self, spec: CacheSpec) -> None:
        """Keep nothing yet."""
        self.spec = spec
        self.epoch = 0
        self.requests: dict[int, Request] = {}
        self._page_tokens = spec.page_tokens
        self._events: deque[CacheEvent] = deque(maxlen=EVENTS_KEPT)

    def events(self) -> list[CacheEvent]:
        """See `KVManager.events`. When nobody asks, only the newest few thousand are kept."""
        events = list(self._events)
        self._events.clear()
        return events

    def _known(self, uid: int) -> Request:
        request = self.requests.get(uid)
        if request is None:
            raise LookupError(f"request {uid} is not open: it has no pages, or was freed already")
        return request

    def _note(self, kind: Literal["stored", "evicted"], pool: int, pages: int, why: str) -> None:
        """Record a change of what a match may find."""
        self.epoch += 1
        self._events.append(CacheEvent(kind, pool, pages, why))

    def _note_gone(self, pool: int, gone: Gone, why: str) -> int:
        """Record what was evicted since somebody asked, or for space; return how many pages."""
        for pages, reason in zip(gone, ("version", "expired", why), strict=True):
            if pages:
                self._note("evicted", pool, pages, reason)
        return sum(gone)

    def _note_all(self, kind: Literal["stored", "evicted"], pages: Iterable[int], why: str) -> None:
        for pool, count in enumerate(pages):
            if count:
                self._note(kind, pool, count, why)
