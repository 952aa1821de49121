"""What a radix cache knows of one open request, and its tokens as bytes."""

from __future__ import annotations

from dataclasses import dataclass
from struct import pack
from typing import TYPE_CHECKING

from ..tables import PageTables
from .tree import TOKEN_BYTES

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

    from .node import Node

_MEMO = "tokens as int32"


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


def token_bytes(prefix: Prefix, tokens: int) -> bytearray:
    """Return at least the first `tokens` tokens as bytes; they are kept, and not to be changed."""
    known: bytearray | None = prefix.memo.get(_MEMO)
    if known is None:
        known = prefix.memo[_MEMO] = bytearray()
    done = len(known) // TOKEN_BYTES
    if done < tokens:
        new = prefix.tokens[done:]
        known += pack(f"<{len(new)}i", *new)
    return known
