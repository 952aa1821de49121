"""A request that was preempted by swap: what the tiers keep for it alone, and under which names.

Units whose text is known and which a tier has, or is about to get, are taken as they are. All
others leave the device under names that nobody else can come to: those with tokens that are not
known yet, the last one, which may be full only in part, and what others are not to find.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix


@dataclass(slots=True, eq=False)
class Swapped:
    """See the module.

    Attributes:
        uid: The request.
        prefix: Its tokens.
        tokens: So many have keys and values in the units.
        declared: So many of these may be found by others, too.
        keys: Names of the units.
        own: Those of them that are its alone.
        ticket: Names its way down.
        until_s: When that is given up.
        leaving: Names of units that may still be on their way down.
    """

    uid: int
    prefix: Prefix
    tokens: int
    declared: int
    keys: list[bytes]
    own: frozenset[bytes]
    ticket: int
    until_s: float
    leaving: list[bytes] = field(default_factory=list)

    def covered(self, units: int, unit_tokens: int) -> int:
        """Return how many tokens its first units hold."""
        return min(units * unit_tokens, self.tokens)

    def shared(self) -> int:
        """Return how many leading units have the names of their texts."""
        return next((at for at, key in enumerate(self.keys) if key in self.own), len(self.keys))
