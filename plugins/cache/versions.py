"""The newest version that was seen of each cache namespace."""

from __future__ import annotations

from collections import OrderedDict
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

NAMESPACES_KEPT = 65_536
"""Namespaces that are remembered, those seen last. Names come from clients: they are bounded."""

_KEY = "namespace"


def namespace_key(prefix: Prefix) -> bytes:
    """Return 16 bytes that name a prefix's namespace among those of all salts; empty for none."""
    scope = prefix.scope
    if not scope.namespace:
        return b""
    known: bytes | None = prefix.memo.get(_KEY)
    if known is None:
        salt, name = (
            one.encode("utf-8", "surrogatepass") for one in (prefix.salt, scope.namespace)
        )
        hashed = blake2b(len(salt).to_bytes(8, "little"), digest_size=16, person=b"namespace")
        hashed.update(salt)
        hashed.update(name)
        known = prefix.memo[_KEY] = hashed.digest()
    return known


class Versions:
    """Remembers versions; knows nothing of pages."""

    def __init__(self) -> None:
        self._newest: OrderedDict[bytes, int] = OrderedDict()

    def see(self, prefix: Prefix) -> bool:
        """Note the version of a request that was opened; True if it is newer than those before."""
        key = namespace_key(prefix)
        if not key:
            return False
        before = self._newest.get(key)
        version = prefix.scope.version
        self._newest[key] = version if before is None else max(before, version)
        self._newest.move_to_end(key)
        if len(self._newest) > NAMESPACES_KEPT:
            self._newest.popitem(last=False)
        return before is not None and version > before

    def is_outdated(self, prefix: Prefix) -> bool:
        """Whether a newer version of the prefix's namespace was seen."""
        key = namespace_key(prefix)
        return bool(key) and prefix.scope.version < self._newest.get(key, 0)
