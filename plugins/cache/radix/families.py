"""Which roots of a tree belong to which version of which namespace."""

from __future__ import annotations


class Families:
    """Roots by namespace; those without one are not kept here."""

    def __init__(self) -> None:
        self._versions: dict[bytes, dict[bytes, int]] = {}
        self._namespaces: dict[bytes, bytes] = {}

    def add(self, root: bytes, namespace: bytes, version: int) -> None:
        """Note a root; an empty namespace is none."""
        if namespace:
            self._versions.setdefault(namespace, {})[root] = version
            self._namespaces[root] = namespace

    def remove(self, root: bytes) -> None:
        """Forget a root, if it is known."""
        namespace = self._namespaces.pop(root, None)
        if namespace is None:
            return
        roots = self._versions[namespace]
        del roots[root]
        if not roots:
            del self._versions[namespace]

    def older(self, namespace: bytes, version: int) -> list[bytes]:
        """Return the roots of a namespace that are of versions before this one."""
        roots = self._versions.get(namespace, {})
        return [root for root, one in roots.items() if one < version]
