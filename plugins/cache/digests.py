"""Digests of full pages: each names its tokens and everything before them.

Pages are hashed in units of a few. A page's digest is the first half of a SHA-256 of its unit's
parent and the unit's tokens up to its end, as little-endian int32; the parent is the digest of the
last page before the unit. So one hash tells whether a whole unit is known, and of all in `hashlib`
this one costs least for so few bytes.
The first parent is the digest of what isolates pages from each other: model, dtype and layout (the
identity of the spec), page size, adapter and salt, and, where there is a cache namespace, of that
and its version, and of an origin, where there is one. A hash this strong stands for the tokens:
where it is equal, nothing else is compared, and nobody can make two prefixes collide.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import TYPE_CHECKING

from .text import TOKEN_BYTES, token_bytes

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

DIGEST_BYTES = 16
UNIT = 8
"""Pages in a unit, where nothing else is said."""


def _digest(*parts: bytes | memoryview) -> bytes:
    hashed = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


class PageDigests:
    """Hashes prefixes page by page; what is hashed once is kept in the prefix's memo."""

    def __init__(self, identity: bytes, page_tokens: int, unit: int = UNIT) -> None:
        """Hash for one kind of pages.

        Args:
            identity: Digest of everything that makes pages incompatible.
            page_tokens: Tokens in a page.
            unit: Pages in a unit.
        """
        self.unit = unit
        self._page_tokens = page_tokens
        self._base = _digest(identity, b"/", page_tokens.to_bytes(8, "little"))
        self._memo = f"page digests {unit} {self._base.hex()}"
        self._ends = f"unit digests {unit} {self._base.hex()}"
        self._root = f"root digest {self._base.hex()}"

    def root(self, prefix: Prefix) -> bytes:
        """Return the parent of the prefix's first page."""
        adapter = prefix.adapter.to_bytes(8, "little", signed=True)
        root = _digest(self._base, adapter, prefix.salt.encode("utf-8", "surrogatepass"))
        scope = prefix.scope
        # Under hashes of their own kind: names are bytes that somebody else may choose as tokens.
        if scope.namespace:
            hashed = blake2b(root, digest_size=DIGEST_BYTES, person=b"version")
            hashed.update(scope.version.to_bytes(8, "little"))
            hashed.update(scope.namespace.encode("utf-8", "surrogatepass"))
            root = hashed.digest()
        if prefix.origin:
            hashed = blake2b(root, digest_size=DIGEST_BYTES, person=b"origin")
            hashed.update(prefix.origin)
            root = hashed.digest()
        return root

    def of(self, prefix: Prefix, pages: int) -> list[bytes]:
        """Return the digests of at least the first `pages` pages, which are full.

        The list is the memo itself: it may be longer, and is not to be changed.
        """
        known: list[bytes] | None = prefix.memo.get(self._memo)
        if known is None:
            known = prefix.memo[self._memo] = []
        while len(known) < pages:
            unit, done = divmod(len(known), self.unit)
            parent = known[unit * self.unit - 1] if unit else self.parent(prefix, 0)
            text = self.text(prefix, unit, min(self.unit, pages - unit * self.unit))
            known += self._pages(parent, text)[done:]
        return known

    def parent(self, prefix: Prefix, unit: int) -> bytes:
        """Return the digest of the last page before a unit; of the first, the root."""
        if unit:
            return self.end(prefix, unit - 1)
        root: bytes | None = prefix.memo.get(self._root)
        if root is None:
            root = prefix.memo[self._root] = self.root(prefix)
        return root

    def end(self, prefix: Prefix, unit: int) -> bytes:
        """Return the digest of the last page of a unit, which is full.

        It costs about what that of any page costs, where the units before it were asked for.
        """
        ends: list[bytes] = prefix.memo.setdefault(self._ends, [])
        while len(ends) <= unit:
            parent = ends[-1] if ends else self.parent(prefix, 0)
            ends.append(self._last(parent, self.text(prefix, len(ends), self.unit)))
        return ends[unit]

    def text(self, prefix: Prefix, unit: int, pages: int) -> bytes:
        """Return the tokens of the first `pages` pages of a unit."""
        first, count = unit * self.unit * self._page_tokens, pages * self._page_tokens
        text = token_bytes(prefix, first + count)
        text = text[first * TOKEN_BYTES : (first + count) * TOKEN_BYTES]
        assert len(text) == count * TOKEN_BYTES, "a page that is not full has no digest"
        return bytes(text)

    def _pages(self, parent: bytes, text: bytes) -> list[bytes]:
        """Hash the pages of a unit, given the parent of its first."""
        size = self._page_tokens * TOKEN_BYTES
        return [self._last(parent, text[:end]) for end in range(size, len(text) + 1, size)]

    def _last(self, parent: bytes, text: bytes) -> bytes:
        """Hash the last page of `text`, which begins where its unit does."""
        return sha256(parent + text).digest()[:DIGEST_BYTES]
