"""Recounts everything that the radix cache keeps count of."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..text import TOKEN_BYTES, token_bytes
from .node import Node, Standing, path_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .manager import Radix
    from .pool import RadixPool
    from .tables import RadixTables


def broken_invariants(cache: Radix) -> list[str]:
    """Return every broken invariant in words. Linear in pages, nodes and table entries."""
    broken = []
    leases = [one for several in cache.trust.leases.values() for one in several]
    for tables in cache.requests.values():
        broken += [f"request {tables.uid}: {one}" for one in _tables(cache, tables)]
    for group, tree in enumerate(cache.trees):
        locks = _paths(tables.lasts[group] for tables in cache.requests.values())
        leased = _paths(one.lasts[group] for one in leases)
        holders = Counter(
            page
            for tables in cache.requests.values()
            for page in tables.groups[group][tables.lasts[group].end :]
        )
        loose = Counter(page for one in leases for page in one.loose[group])
        nodes = list(tree.nodes())
        page_bytes = cache.spec.page_tokens * TOKEN_BYTES
        found = [
            *(one for node in nodes for one in _node(node, page_bytes)),
            *_held([*nodes, *tree.roots.values()], locks, leased),
            *_standings(tree.pool, nodes),
            *_special(tree.pool, holders, loose),
            *_classes(tree.pool, nodes, {*holders, *loose}),
        ]
        idle = [one for one in tree.roots.values() if not (one.children or one.locks or one.leases)]
        if idle:
            found.append(f"{len(idle)} roots are kept for nobody")
        broken += [f"pool {group}: {one}" for one in found]
    return broken


def _paths(lasts: Iterable[Node]) -> Counter[Node]:
    return Counter(node for last in lasts for node in path_up(last))


def _tables(cache: Radix, tables: RadixTables) -> Iterator[str]:
    size = cache.spec.page_tokens
    lengths = [len(table) for table in tables.groups]
    if len(set(lengths)) > 1:
        yield f"its tables have different lengths, {lengths}"
    if tables.committed > lengths[0] * size:
        yield f"{tables.committed} tokens are committed, in {lengths[0]} pages"
    for group in range(len(lengths)):
        for one in _path(cache, tables, group):
            yield f"group {group} {one}"


def _path(cache: Radix, tables: RadixTables, group: int) -> Iterator[str]:
    tree, table, last = cache.trees[group], tables.groups[group], tables.lasts[group]
    tokens = last.end * cache.spec.page_tokens
    if len(set(table)) < len(table) or 0 in table:
        yield f"holds a page twice, or the null page: {table}"
    if tokens > tables.committed:
        yield f"has a path of {tokens} tokens, {tables.committed} are committed"
        return
    if table[: last.end] != tree.pages_of(last):
        yield f"begins with {table[: last.end]}, its path is another"
    key = b"".join(tree.key_of(node) for node in reversed(list(path_up(last))) if node.parent)
    if key != token_bytes(tables.prefix, tokens)[: tokens * TOKEN_BYTES]:
        yield "has a path of other tokens"
    *_, root = path_up(last)
    if tree.roots.get(tables.root) is not root:
        yield "has a path that begins at another root"


def _node(node: Node, page_bytes: int) -> Iterator[str]:
    name, parent = f"the node of pages {node.run}", node.parent
    if not node.run or len(node.key) < len(node.run) * page_bytes or node.pages != len(node.run):
        yield f"{name} has {len(node.key)} bytes of tokens and counts {node.pages}"
    if parent is None or parent.children.get(node.key[:page_bytes]) is not node:
        yield f"{name} is not its parent's child"
    elif node.first != parent.end or node.depth != node.first * page_bytes // TOKEN_BYTES:
        yield f"{name} begins at page {node.first}, behind {parent.end}"
    elif node.standing is Standing.GONE:
        yield f"{name} is gone and still in the tree"
    elif parent.run and parent.standing > node.standing:
        yield f"{name} is {node.standing.name}, its parent {parent.standing.name}"


def _held(nodes: list[Node], locks: Counter[Node], leased: Counter[Node]) -> Iterator[str]:
    for node in nodes:
        if node.locks != locks[node]:
            yield f"pages {node.run} count {node.locks} locks, {locks[node]} paths lead there"
        if node.leases != leased[node]:
            yield f"pages {node.run} count {node.leases} leases, there are {leased[node]}"
    for node in {*locks, *leased} - set(nodes):
        yield f"a path leads to pages {node.run}, which are not in the tree"


def _standings(pool: RadixPool, nodes: list[Node]) -> Iterator[str]:
    counts = [0] * len(Standing)
    for node in nodes:
        counts[node.standing] += len(node.run)
        deserved = (
            Standing.USED
            if node.locks
            else Standing.LEASED
            if node.leases
            else Standing.FENCED
            if node.newest > pool.complete
            else Standing.EVICTABLE
        )
        if node.standing is not deserved:
            yield f"pages {node.run} are {node.standing.name}, and should be {deserved.name}"
        leaf = node.standing is Standing.EVICTABLE and not node.children
        if (node in pool.evictable) != leaf:
            yield f"pages {node.run} are {'not ' * leaf}offered to the policy"
    if counts != pool.counts:
        yield f"nodes have {counts} pages, {pool.counts} are counted"
    strays = [one for one in pool.evictable if one not in set(nodes)]
    if strays:
        yield f"the policy was offered {len(strays)} nodes that are not in the tree"


def _special(pool: RadixPool, holders: Counter[int], loose: Counter[int]) -> Iterator[str]:
    for page in {*holders, *loose, *pool.special}:
        one = pool.special.get(page)
        counted = (one.holders, one.leases) if one else (1, 0)
        if counted != (holders[page], loose[page]):
            yield (
                f"loose page {page} counts {counted[0]} holders and {counted[1]} leases, "
                f"it has {holders[page]} and {loose[page]}"
            )


def _classes(pool: RadixPool, nodes: list[Node], loose: set[int]) -> Iterator[str]:
    """Check that every page is in one place, and the counts with it."""
    fenced = [page for pages in pool.fenced_pages.values() for page in pages]
    places: dict[str, list[int]] = {
        "free": pool.free,
        "in a node": [page for node in nodes for page in node.run],
        "fenced": fenced,
        "loose": list(loose),
    }
    seen = Counter(page for pages in places.values() for page in pages)
    for page in range(1, pool.total + 1):
        if seen[page] != 1:
            names = [name for name, pages in places.items() if page in pages]
            yield f"page {page} is {' and '.join(names) or 'lost'}"
    beyond = sorted(page for page in seen if not 1 <= page <= pool.total)
    if beyond:
        yield f"pages {beyond} do not exist"
    waiting = Counter({step: len(pages) for step, pages in pool.fenced_pages.items()})
    for node in nodes:
        if node.standing is Standing.FENCED:
            waiting[node.newest] += len(node.run)
            if node not in pool.fenced_nodes.get(node.newest, []):
                yield f"pages {node.run} wait for step {node.newest}, which will not tell them"
    if +waiting != +pool.coming or any(step <= pool.complete for step in pool.coming):
        yield f"pages wait for {dict(waiting)}, {dict(pool.coming)} is counted"
