"""What a radix cache knows of one open request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..tables import PageTables

if TYPE_CHECKING:
    from .node import Node


@dataclass(slots=True, eq=False, kw_only=True)
class RadixTables(PageTables):
    """The page tables of a request; they begin with the pages of the paths that it holds.

        table of a group   [0 ... end of its path)  in the tree   [... len(table))  loose

    Attributes:
        root: Digest of what isolates it.
        lasts: For each group, the last node of its path.

    Steps that write what was known when it was opened are declared when they are launched, so that
    the newest step that reads its tables is known then.
    """

    root: bytes
    lasts: list[Node]


@dataclass(slots=True, eq=False)
class Lease:
    """What `free` left pinned.

    Attributes:
        lasts: For each group, the last node of the path.
        loose: For each group, loose pages.
    """

    lasts: list[Node]
    loose: list[list[int]]
