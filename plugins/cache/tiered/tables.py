"""What a manager with tiers keeps of an open request: a copy of its page tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.contracts.cache import NULL_PAGE

if TYPE_CHECKING:
    from camshaft.contracts.cache import Delta, Prefix

    from .units import Units


@dataclass(slots=True, eq=False)
class Tables:
    """See the module. The copy is kept from the deltas that pass by.

    Attributes:
        uid: The request.
        prefix: Its tokens.
        groups: A table for each KV group.
        committed: Tokens whose keys and values are written.
        own_from: Leading tokens that it found on the device, whenever it was opened.
        considered: Leading units that were offered to the tiers, or need not be.
        trusted: False once it may have read wrong pages: nothing of it goes to a tier.
    """

    uid: int
    prefix: Prefix
    groups: list[list[int]]
    committed: int = 0
    own_from: int = 0
    considered: int = 0
    trusted: bool = True

    def apply(self, delta: Delta) -> None:
        """Carry out what a delta writes."""
        for group, first, pages in delta.writes:
            self.groups[group][first : first + len(pages)] = pages

    def may_be_read_by(self, prefix: Prefix, page_tokens: int) -> bool:
        """Whether a request of this text may have a page that this one wrote or loaded."""
        end = (self.own_from // page_tokens + 1) * page_tokens
        return (
            end <= self.committed
            and _scope(prefix) == _scope(self.prefix)
            and prefix.tokens[:end] == self.prefix.tokens[:end]
        )

    def unit(self, units: Units, place: int) -> list[list[int]] | None:
        """Return the pages of unit number `place` in each group; None if it has not got all."""
        pages = [units.pages_of(table, place) for table in self.groups]
        if any(len(own) < units.pages or NULL_PAGE in own for own in pages):
            return None
        return pages


def _scope(prefix: Prefix) -> tuple[str, int, str, int]:
    return prefix.salt, prefix.adapter, prefix.scope.namespace, prefix.scope.version
