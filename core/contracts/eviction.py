"""EvictionPolicy: which cached entry goes first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Entry:
    """A cached, unused run of tokens that can be evicted.

    Attributes:
        pages: Pages it frees.
        depth: Tokens before it in its sequence; deeper entries depend on shallower ones.
        created_s: When it was inserted, on the engine's clock.
        touched_s: When it last served a request.
        hits: How often it served a request.
        priority: Of the most urgent request that used it; lower is more urgent.
        expires_s: When it loses its worth, or infinity: from then on it is not served, and goes
            first. A policy may bring it forward in `on_insert` and `on_touch`, never put it off;
            what a policy said is void once the entry is used.
        reach: Tokens of the longest sequence that used it, as far as they were computed.
        memo: For the policy alone.
    """

    pages: int = 1
    depth: int = 0
    created_s: float = 0.0
    touched_s: float = 0.0
    hits: int = 0
    priority: int = 0
    expires_s: float = float("inf")
    reach: int = 0
    memo: dict[str, Any] = field(default_factory=dict)


class EvictionPolicy(ABC):
    """Orders evictable entries. Constructed as `Policy(settings)`, one for each pool.

    `key` may depend only on the entry and on the policy's own state, and an entry's key may change
    only inside `on_insert` and `on_touch` of that entry: the caller keeps a heap of keys and
    renews one only after these calls. Called from one thread. Must not raise.
    """

    @abstractmethod
    def on_insert(self, entry: Entry) -> None:
        """Note an entry that was just cached. Its times are set."""

    @abstractmethod
    def on_touch(self, entry: Entry) -> None:
        """Note that an entry served a request. Its `touched_s` and `hits` are set."""

    @abstractmethod
    def on_evict(self, entry: Entry) -> None:
        """Note that an entry was evicted, since its key was the smallest."""

    def on_discard(self, entry: Entry) -> None:
        """Note that an entry is gone for another reason: it expired, or its content is void.

        The same as `on_evict` unless a policy learns from what it evicts.
        """
        self.on_evict(entry)

    @abstractmethod
    def key(self, entry: Entry) -> Any:  # noqa: ANN401 - any type that compares with itself
        """Return a comparable; the entry with the smallest goes first."""
