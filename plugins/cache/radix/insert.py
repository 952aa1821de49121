"""Puts the pages of a request into a radix tree, behind the path that it holds."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from .node import Node, Standing

if TYPE_CHECKING:
    from .tree import RadixTree


class Inserted(NamedTuple):
    """What became of a request's pages.

    Attributes:
        last: The node whose path the request holds now.
        stored: Pages that became matchable.
        lost: Pages that were too old, and gave way.
        replaced: For each place in the table that got the page of an equal run, the page that was
            there; the caller has to drop it.
    """

    last: Node
    stored: int
    lost: int
    replaced: dict[int, int]


def insert(
    tree: RadixTree,
    last: Node,
    data: bytearray,
    table: list[int],
    full: int,
    merge: bool,
    like: Node,
) -> Inserted:
    """Put a request's pages from the end of its path up to `full` into the tree.

    Where an equal run is there already, its pages go into the table; if it is too old, it gives
    way. Pages that a fork or a lease shares stay out, and all behind them.

    Args:
        tree: Of the group.
        last: Of the request's path, which is extended.
        data: Its tokens as bytes.
        table: Its pages.
        full: Pages that are full and written.
        merge: Whether pages in the table may be replaced; if not, an equal run is the end.
        like: A node that is not in the tree; what is new in it is like this one.
    """
    stored, lost, replaced, size = 0, 0, dict[int, int](), tree.page_bytes
    now, most_s = like.created_s, like.until_s - like.created_s
    while last.end < full:
        at = last.end
        child = last.children.get(bytes(data[at * size : (at + 1) * size]))
        if child is not None and not child.is_fresh(now, most_s):
            if child.locks or child.leases:
                break
            lost += tree.detach(child)
            child = None
        if child is None:
            new = tree.pool.claimable(table[at:full])
            if not new:
                break
            last = _append(tree, last, data, table[at : at + new], like)
            stored += new
        elif merge:
            last = _advance(tree, child, tree.common(child, data, full))
            replaced.update(zip(range(at, last.end), table[at : last.end], strict=True))
            table[at : last.end] = last.run
        else:
            break
    return Inserted(last, stored, lost, replaced)


def _advance(tree: RadixTree, child: Node, pages: int) -> Node:
    """Hold the first pages of a child too, for a request that holds its parent."""
    if pages < len(child.run):
        child = tree.split(child, pages)
    tree.pool.lock_one(child)
    return child


def _append(tree: RadixTree, last: Node, data: bytearray, pages: list[int], like: Node) -> Node:
    """Add pages behind a path, for the one request that holds them."""
    end, size = last.end, tree.page_bytes
    key = bytes(data[end * size : (end + len(pages)) * size])
    newest = tree.pool.claim(pages)
    tree.pool.counts[Standing.USED] += len(pages)
    own = last.writer == like.writer and last.locks == 1 and last.run
    if own and not last.leases and not last.children:
        last.key = tree.key_of(last) + key
        last.run += pages
        last.pages += len(pages)
        last.newest = max(last.newest, newest)
        return last
    node = Node(
        pages=len(pages),
        depth=end * tree.page_tokens,
        created_s=like.created_s,
        touched_s=like.touched_s,
        priority=like.priority,
        expires_s=like.until_s,
        until_s=like.until_s,
        key=key,
        run=pages,
        first=end,
        parent=last,
        locks=1,
        newest=newest,
        writer=like.writer,
    )
    last.children[key[:size]] = node
    tree.pool.timed |= node.until_s < inf
    return node
