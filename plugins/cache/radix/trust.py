"""What was written by steps that may yet fail, and how what is wrong leaves the trees.

When pages turn out to be wrong, so is what was computed from them: the nodes below go with them,
and open requests that hold paths through them lose their trust. Nothing that they write later
becomes matchable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..text import token_bytes
from .node import Node, Standing, path_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .tables import Lease, RadixTables
    from .tree import RadixTree


class _Filled(NamedTuple):
    """A request, and the first of the pages that a step filled."""

    tables: RadixTables
    first: int


class Trust:
    """Undoes insertions. `requests` and `leases` are the manager's own, and read when needed."""

    def __init__(
        self, trees: Sequence[RadixTree], requests: dict[int, RadixTables], page_tokens: int
    ) -> None:
        self.leases: dict[str, list[Lease]] = {}
        self._trees = trees
        self._requests = requests
        self._page_tokens = page_tokens
        self._unfinished: dict[int, list[_Filled]] = {}
        self._complete = 0  # steps count from 1

    def note(self, tables: RadixTables, first: int, step: int) -> None:
        """Note that `step` fills pages of a request, `first` and later ones."""
        if step > self._complete:
            self._unfinished.setdefault(step, []).append(_Filled(tables, first))

    def inherit(self, parent: RadixTables, child: RadixTables) -> None:
        """Let a fork share the fate of its parent, should an unfinished step be revoked."""
        for log in self._unfinished.values():
            log += [_Filled(child, one.first) for one in log if one.tables is parent]

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete and cannot be revoked any more."""
        self._complete = max(self._complete, step)
        for done in [one for one in self._unfinished if one <= step]:
            del self._unfinished[done]

    def revoke(self, step: int) -> list[int]:
        """Forget what `step` and later ones, which build on it, filled.

        Returns:
            How many pages were forgotten, for each tree.
        """
        forgotten = [0] * len(self._trees)
        for late in [one for one in self._unfinished if one >= step]:
            for tables, first in self._unfinished.pop(late):
                tables.trusted = False
                for place, tree in enumerate(self._trees):
                    forgotten[place] += self._undo(tree, tables, first)
        self._repair()
        return forgotten

    def _undo(self, tree: RadixTree, tables: RadixTables, first: int) -> int:
        """Detach what a request itself wrote from page `first` on."""
        most = len(tables.prefix.tokens) // self._page_tokens
        data = token_bytes(tables.prefix, most * self._page_tokens)
        node, _ = tree.walk(tables.root, data, most)
        own = [
            one for one in path_up(node) if one.run and one.end > first and one.writer == tables.uid
        ]
        return tree.detach_from(own[-1], max(first, own[-1].first)) if own else 0

    def distrust(self, writer: int) -> list[int]:
        """Forget what a request wrote and what builds on it; returns as `revoke`."""
        forgotten = []
        for tree in self._trees:
            wrong = [one for one in tree.nodes() if one.writer == writer]
            # Parents come first, and take their children with them.
            pages = sum(tree.detach(one) for one in wrong if one.standing is not Standing.GONE)
            forgotten.append(pages)
        self._repair()
        return forgotten

    def outdate(self, namespace: bytes, version: int) -> list[int]:
        """Forget what a namespace has of versions before this one; returns as `revoke`."""
        forgotten = [tree.outdate(namespace, version) for tree in self._trees]
        self._repair()
        return forgotten

    def _repair(self) -> None:
        """Let those whose paths have lost their ends hold what is left."""
        for tables in self._requests.values():
            for place, last in enumerate(tables.lasts):
                if last.standing is Standing.GONE:
                    tables.lasts[place] = _survivor(last)
                    tables.trusted = False
        for lease in (one for several in self.leases.values() for one in several):
            for place, last in enumerate(lease.lasts):
                lost = _lost(last)
                if lost:
                    lease.lasts[place] = _survivor(last)
                    lease.loose[place] += [page for node in lost for page in node.run]


def _lost(last: Node) -> Iterable[Node]:
    return [node for node in path_up(last) if node.standing is Standing.GONE]


def _survivor(last: Node) -> Node:
    return next(node for node in path_up(last) if node.standing is not Standing.GONE)
