"""Digests of full pages: each names its tokens and everything before them.

A page's digest is BLAKE2b, 16 bytes, of its parent's digest and its tokens as little-endian int64.
The first parent is the digest of what isolates pages from each other: model, dtype and layout (the
identity of the spec), page size, adapter and salt, and, where there is a cache namespace, of that
and its version. A hash this strong stands for the tokens: a
look-up compares nothing else, and nobody can make two prefixes collide.
"""

from __future__ import annotations

import sys
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

DIGEST_BYTES = 16
_TOKEN_BYTES = 8


def _digest(*parts: bytes | memoryview) -> bytes:
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


class PageDigests:
    """Hashes prefixes page by page; what is hashed once is kept in the prefix's memo."""

    def __init__(self, identity: bytes, page_tokens: int) -> None:
        """Hash for one kind of pages.

        Args:
            identity: Digest of everything that makes pages incompatible.
            page_tokens: Tokens in a page.
        """
        self._page_tokens = page_tokens
        self._base = _digest(identity, b"/", page_tokens.to_bytes(8, "little"))
        self._memo = f"page digests {self._base.hex()}"

    def root(self, prefix: Prefix) -> bytes:
        """Return the parent of the prefix's first page."""
        adapter = prefix.adapter.to_bytes(8, "little", signed=True)
        root = _digest(self._base, adapter, prefix.salt.encode("utf-8", "surrogatepass"))
        scope = prefix.scope
        if not scope.namespace:
            return root
        # Under a hash of its own kind: names are bytes that somebody else may choose as tokens.
        hashed = blake2b(root, digest_size=DIGEST_BYTES, person=b"version")
        hashed.update(scope.version.to_bytes(8, "little"))
        hashed.update(scope.namespace.encode("utf-8", "surrogatepass"))
        return hashed.digest()

    def of(self, prefix: Prefix, pages: int) -> list[bytes]:
        """Return the digests of at least the first `pages` pages, which are full.

        The list is the memo itself: it may be longer, and is not to be changed.
        """
        known: list[bytes] | None = prefix.memo.get(self._memo)
        if known is None:
            known = prefix.memo[self._memo] = []
        if len(known) < pages:
            self._extend(known, prefix, pages)
        return known

    def _extend(self, known: list[bytes], prefix: Prefix, pages: int) -> None:
        size = self._page_tokens
        tokens = array("q", prefix.tokens[len(known) * size : pages * size])
        assert len(tokens) == (pages - len(known)) * size, "a page that is not full has no digest"
        if sys.byteorder == "big":
            tokens.byteswap()
        data = memoryview(tokens.tobytes())
        parent = known[-1] if known else self.root(prefix)
        page_bytes = size * _TOKEN_BYTES
        for start in range(0, len(data), page_bytes):
            hashed = blake2b(parent, digest_size=DIGEST_BYTES)
            hashed.update(data[start : start + page_bytes])
            parent = hashed.digest()
            known.append(parent)
