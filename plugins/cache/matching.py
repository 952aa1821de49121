"""The longest cached prefix that is valid in every KV group at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

Name = TypeVar("Name")
"""Of a page: a digest of its text, or its place in one text."""


def passed_pages(tokens: int, window: int, page_tokens: int) -> int:
    """Return how many leading pages no query at position `tokens` or later can see.

    Args:
        tokens: Tokens that are in pages.
        window: Tokens that a query sees, itself included; 0 is all.
        page_tokens: Tokens in a page.
    """
    # position   0 ........ tokens - window | tokens - window + 1 .... tokens - 1 | tokens
    #            passed                     | seen by the query at `tokens`, the next one
    return max(0, tokens - window + 1) // page_tokens if window else 0


def longest_match(
    indexes: Sequence[Container[Name]],
    windows: Sequence[int],
    names: Sequence[Name],
    limit: int,
    page_tokens: int,
) -> int:
    """Return the most leading pages that all groups can serve.

    A full group serves `n` pages if it holds all of them, a sliding one if it holds those that the
    next token can see.

    Args:
        indexes: Names of the cached pages of each group.
        windows: Of each group; 0 is full.
        names: Of the prefix's pages, in order.
        limit: Most pages to return.
        page_tokens: Tokens in a page.
    """
    length = limit
    for index, window in zip(indexes, windows, strict=True):
        if not window:
            length = _leading(index, names, length)
    settled = False
    while length and not settled:
        settled = True
        for index, window in zip(indexes, windows, strict=True):
            if not window:
                continue
            shorter = _covered(index, names, length, window, page_tokens)
            settled &= shorter == length
            length = shorter
    return length


def _leading(index: Container[Name], names: Sequence[Name], limit: int) -> int:
    for place in range(limit):
        if names[place] not in index:
            return place
    return limit


def _covered(
    index: Container[Name],
    names: Sequence[Name],
    length: int,
    window: int,
    page_tokens: int,
) -> int:
    """Return the most pages up to `length` whose window is held."""
    place = length - 1
    while place >= passed_pages(length * page_tokens, window, page_tokens):
        if names[place] not in index:
            # Every longer match that sees this page fails; the first to end before it may do.
            length = place
        place -= 1
    return length
