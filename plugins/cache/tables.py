"""The page tables of one open request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix


@dataclass(slots=True, eq=False)
class PageTables:
    """What a manager knows of one request, between its first `allocate` and `free`.

        pages of a group   [0 ... passed)  null   [passed ... len(table))  held
        tokens             [0 ... committed)  written   [... granted)  capacity

    Attributes:
        uid: The request.
        prefix: Its tokens.
        groups: A table for each KV group, all of one length.
        passed: For each group, leading pages that its window has passed.
        committed: Tokens whose keys and values are written, as far as the manager was told.
        considered: Leading pages that were adopted, inherited, registered, or found to have an
            equal that is registered.
        opened: Tokens that were known when it was opened: its prompt, and what it had generated
            before it was preempted.
        written_by: The newest step that filled pages of it which are not considered yet.
        since_s: When the first of these was filled.
        trusted: False once it may have read pages that were wrong: nothing that it writes later
            becomes matchable.
    """

    uid: int
    prefix: Prefix
    groups: list[list[int]]
    passed: list[int]
    committed: int = 0
    considered: int = 0
    opened: int = 0
    written_by: int = 0
    since_s: float = 0.0
    trusted: bool = True

    @property
    def pages(self) -> int:
        """Pages of each table, null pages included."""
        return len(self.groups[0])
