"""Hits of the token table: for each pool a path in its tree, and how far it is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from camshaft.contracts.cache import Hit

from .requests import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import Prefix

    from .pool import TokenPool
    from .runs import Run


class Found(NamedTuple):
    """The handle of a hit: a path for each pool."""

    epoch: int
    paths: list[list[Run]]


def find(
    pools: Sequence[TokenPool], root: bytes, prefix: Prefix, length: int, now: float
) -> tuple[int, list[list[Run]]]:
    """Return how many pages, at most `length`, all pools can serve, and the paths to them."""
    text, most_s, paths = text_of(prefix), prefix.scope.ttl_s, []
    for pool in pools:
        path, length = pool.tree.walk(root, text, length, now=now, most_s=most_s)
        paths.append(path)
    return length, [[run for run in path if run.first < length] for path in paths]


def paths_of(hit: Hit | None, tokens: int, epoch: int, pools: int) -> list[list[Run]]:
    """Return the paths of a hit that is adopted; empty ones if there is none.

    Raises:
        ValueError: The hit is stale, or longer than the `tokens` that are allocated.
    """
    if hit is None or not hit.ready:
        return [[] for _ in range(pools)]
    found = hit.handle
    if not isinstance(found, Found) or found.epoch != epoch:
        raise ValueError("the hit is not of the present epoch; match again")
    if hit.ready > tokens:
        raise ValueError(f"the hit brings {hit.ready} tokens to an allocation for {tokens}")
    return found.paths
