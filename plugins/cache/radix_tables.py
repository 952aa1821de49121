"""What a radix cache knows of one open request, and its tokens as bytes."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .radix_tree import TOKEN_BYTES
from .tables import PageTables

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

    from .radix_node import Node

_MEMO = "tokens as int64"


@dataclass(slots=True, eq=False, kw_only=True)
class RadixTables(PageTables):
    """The page tables of a request; they begin with the pages of the paths that it holds.

        table of a group   [0 ... end of its path)  in the tree   [... len(table))  loose

    Attributes:
        root: Digest of what isolates it.
        lasts: For each group, the last node of its path.
        opened: Tokens that were known when it was opened. Steps that write these are declared when
            they are launched, so that the newest step that reads its tables is known then.
    """

    root: bytes
    lasts: list[Node]
    opened: int


@dataclass(slots=True, eq=False)
class Lease:
    """What `free` left pinned.

    Attributes:
        lasts: For each group, the last node of the path.
        loose: For each group, loose pages.
    """

    lasts: list[Node]
    loose: list[list[int]]


def token_bytes(prefix: Prefix, tokens: int) -> bytearray:
    """Return at least the first `tokens` tokens as bytes; they are kept, and not to be changed."""
    known: bytearray | None = prefix.memo.get(_MEMO)
    if known is None:
        known = prefix.memo[_MEMO] = bytearray()
    done = len(known) // TOKEN_BYTES
    if done < tokens:
        known += array("q", prefix.tokens[done:]).tobytes()
    return known
