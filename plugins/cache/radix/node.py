"""A node of a radix tree: a run of full pages behind those of its parents."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING

from camshaft.contracts.eviction import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator


class Standing(IntEnum):
    """What keeps the pages of a node, in order of precedence."""

    USED = 0
    """A request holds the path through it."""
    LEASED = 1
    """No request does, a lease does."""
    FENCED = 2
    """Nobody does, but a step that may touch its pages is not known to be complete."""
    EVICTABLE = 3
    """Cached and unused."""
    GONE = 4
    """It is no longer in the tree."""


@dataclass(slots=True, eq=False, kw_only=True)
class Node(Entry):
    """Some full pages that one request wrote, one after the other.

        root ... parent [first - n ... first)   this [first ... end)   children [end ...

    A root stands for all that isolates: its `key` is the digest of that, and its run is empty.

    Attributes:
        key: The tokens of the run, 4 bytes each, and perhaps of pages that were evicted from its
            end (`RadixTree.key_of` cuts them off); the digest of a root.
        run: Page ids.
        first: Pages before the run.
        parent: None for a root.
        children: By the tokens of their first page.
        locks: Open requests whose path leads through it.
        leases: Leases whose path does.
        newest: The newest step that may touch its pages through somebody who let go.
        writer: Uid of the request that wrote it.
        until_s: When it becomes too old to be served, whatever the policy says.
        standing: See there; a root's means nothing.
    """

    key: bytes
    run: list[int] = field(default_factory=list)
    first: int = 0
    parent: Node | None = None
    children: dict[bytes, Node] = field(default_factory=dict)
    locks: int = 0
    leases: int = 0
    newest: int = 0
    writer: int = 0
    until_s: float = inf
    standing: Standing = Standing.USED

    @property
    def end(self) -> int:
        """Pages up to and with the run."""
        return self.first + len(self.run)

    def is_fresh(self, now: float, most_s: float) -> bool:
        """Whether it may be served now to a request that takes pages of `most_s` seconds."""
        return now < self.expires_s and now - self.created_s < most_s


def path_up(node: Node | None) -> Iterator[Node]:
    """Iterate from a node to its root, both included."""
    while node is not None:
        yield node
        node = node.parent


def covering(node: Node, pages: int) -> Node:
    """Return the node on the path to `node` that holds the last of the first `pages` pages."""
    while node.parent is not None and node.first >= pages:
        node = node.parent
    return node


def subtree(node: Node) -> Iterator[Node]:
    """Iterate over a node and all below it, parents first."""
    left = [node]
    while left:
        one = left.pop()
        yield one
        left.extend(one.children.values())
