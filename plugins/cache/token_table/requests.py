"""What the token table knows of one open request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from struct import pack
from typing import TYPE_CHECKING

from camshaft.contracts.cache import TableWrite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import Prefix

    from .runs import Run

_TEXT, _OWN = "token table text", "token table own"


def text_of(prefix: Prefix) -> array[int]:
    """Return a prefix's tokens as an array, which is kept in its memo and grows with it."""
    text: array[int] | None = prefix.memo.get(_TEXT)
    if text is None:
        text = prefix.memo[_TEXT] = array("i")
    if len(text) < len(prefix.tokens):
        new = prefix.tokens[len(text) :]
        text.frombytes(pack(f"{len(new)}i", *new))
    return text


def own_from(prefix: Prefix, ready: int) -> int:
    """Return how many leading pages a request never wrote, before it was preempted or since."""
    first: int = min(ready, prefix.memo.get(_OWN, ready))
    prefix.memo[_OWN] = first
    return first


@dataclass(slots=True, eq=False)
class Hold:
    """A request's pages in one pool.

        pages   [0 ... considered)  in the tree   [considered ... len(table))  its own affair

    Attributes:
        table: Its pages.
        foreign: Pages in the table that it does not own: others hold them, or did so.
        considered: Leading pages of the table that are pages of the tree.
        run: Where the last of them was when it was looked up; it may have been cut in two since.
        apart: It computed a page whose equal the tree has, and holds its own copy of it. What it
            wrote since joins the tree when it is freed: before, it could outlive what it depends
            on in the tree.
    """

    table: array[int]
    foreign: int = 0
    considered: int = 0
    run: Run | None = None
    apart: bool = False

    def head(self, pages: int) -> Hold:
        """Return the first pages for a fork, which are its as little as the other's from now on."""
        considered = min(self.considered, pages)
        apart = self.apart and self.considered < pages
        return Hold(self.table[:pages], pages, considered, self.run, apart)


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request between its first `allocate` and `free`.

    Attributes:
        uid: Its name.
        prefix: Its tokens.
        root: Digest of what isolates it.
        holds: For each pool, tables of one length.
        own_from: Pages before the first that it wrote.
        committed: Tokens whose keys and values are written, as far as the manager was told.
        expected: Length at which it is expected to end.
        opened: Tokens that were known when it was opened.
        since_s: When the first pages were committed that are not entered into the trees.
        unseen: Whether there are such pages.
        trusted: False once it may have read pages that were wrong: nothing that it writes later
            becomes matchable.
    """

    uid: int
    prefix: Prefix
    root: bytes
    holds: list[Hold] = field(default_factory=list)
    own_from: int = 0
    committed: int = 0
    expected: int = 0
    opened: int = 0
    since_s: float = 0.0
    unseen: bool = False
    trusted: bool = True

    @property
    def pages(self) -> int:
        """Pages of each table."""
        return len(self.holds[0].table)

    def pages_left(self, pages: int, page_tokens: int) -> int:
        """Return how many more pages than `pages` it is expected to need."""
        may_go_on = self.prefix.most_tokens > pages * page_tokens
        return max(-(-self.expected // page_tokens) - pages, int(may_go_on))

    def fork(
        self, uid: int, prefix: Prefix, holds: list[Hold], at: int, own_from: int
    ) -> OpenRequest:
        """Return a request that goes on from here after `at` tokens, with pages of its own."""
        return OpenRequest(
            uid,
            prefix,
            self.root,
            holds,
            own_from,
            # what steps in flight compute for this request, it commits itself
            committed=min(at, self.committed),
            opened=len(prefix.tokens),
            trusted=self.trusted,
        )


def table_writes(holds: Sequence[Hold]) -> tuple[TableWrite, ...]:
    """Return the writes that set whole tables."""
    return tuple(
        TableWrite(group, 0, held.table[:]) for group, held in enumerate(holds) if held.table
    )
