"""Finds and inserts prefixes in the trees of all groups at once."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from camshaft.contracts.cache import Prefix

from ..digests import PageDigests
from ..text import token_bytes
from ..versions import Versions, namespace_key
from .insert import insert
from .node import Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from camshaft.contracts.cache import CacheSpec

    from .insert import Inserted
    from .tables import RadixTables
    from .tree import RadixTree
    from .trust import Trust


class RadixIndex:
    """What is matchable. `trust` takes back what is outdated."""

    def __init__(self, spec: CacheSpec, trees: Sequence[RadixTree], trust: Trust) -> None:
        self._spec = spec
        self._trees = trees
        self._trust = trust
        self._digests = PageDigests(spec.identity, spec.page_tokens)
        self._versions = Versions()
        self._memo = f"radix root {self._digests.root(Prefix([])).hex()}"

    def root(self, prefix: Prefix) -> bytes:
        """Return the digest of what isolates a prefix."""
        name: bytes | None = prefix.memo.get(self._memo)
        if name is None:
            name = prefix.memo[self._memo] = self._digests.root(prefix)
        return name

    def hold_roots(self, prefix: Prefix) -> list[Node]:
        """Hold the empty path of each tree for a request that is opened."""
        namespace, version = namespace_key(prefix), prefix.scope.version
        return [tree.hold_root(self.root(prefix), namespace, version) for tree in self._trees]

    def match(self, prefix: Prefix, limit: int) -> tuple[int, list[Node]]:
        """Find the longest prefix that all groups have.

        Returns:
            How many tokens, at most `limit`, and for each tree a node whose path covers them.
        """
        size = self._spec.page_tokens
        length = min(limit, len(prefix.tokens)) // size
        if length < 1 or not self._spec.prefix or self._versions.is_outdated(prefix):
            return 0, []
        most_s = prefix.scope.ttl_s
        timed = most_s < inf or any(tree.pool.timed for tree in self._trees)
        now = self._spec.now() if timed else -inf
        name, data = self.root(prefix), token_bytes(prefix, length * size)
        nodes = []
        for tree in self._trees:
            node, length = tree.walk(name, data, length, now, most_s)
            if node is None or not length:
                return 0, []
            nodes.append(node)
        return length * size, nodes

    def insert(self, tables: RadixTables, full: int, *, merge: bool) -> list[Inserted]:
        """Make a request's first `full` pages matchable; see `insert`."""
        if not tables.trusted or not self._spec.prefix:
            return []
        data = token_bytes(tables.prefix, full * self._spec.page_tokens)
        now = self._spec.now()
        like = Node(
            created_s=now,
            touched_s=now,
            until_s=now + tables.prefix.scope.ttl_s,
            priority=tables.prefix.priority,
            key=b"",
            writer=tables.uid,
        )
        inserted = []
        for group, tree in enumerate(self._trees):
            last, table = tables.lasts[group], tables.groups[group]
            inserted.append(insert(tree, last, data, table, full, merge, like))
        tables.lasts[:] = [one.last for one in inserted]
        return inserted

    def see(self, opened: RadixTables, requests: Iterable[RadixTables]) -> list[int] | None:
        """Note the version of a request that was opened.

        Args:
            opened: The request.
            requests: All that are open. Those of older versions write nothing matchable any more.

        Returns:
            None, or if that outdates its namespace, the pages that were forgotten for each tree.
        """
        prefix = opened.prefix
        if not self._versions.see(prefix):
            opened.trusted = not self._versions.is_outdated(prefix)
            return None
        for tables in requests:
            tables.trusted &= not self._versions.is_outdated(tables.prefix)
        return self._trust.outdate(namespace_key(prefix), prefix.scope.version)
