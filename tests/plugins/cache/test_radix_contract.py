from __future__ import annotations

from typing import ClassVar

from camshaft.contracts.cache import CacheSpec
from camshaft.plugins.cache.components import RadixSettings
from camshaft.plugins.cache.radix.manager import Radix
from camshaft.testing.cache import KVManagerContract


class TestRadix(KVManagerContract):
    kinds: ClassVar[frozenset[str]] = frozenset({"full"})

    def make(self, spec: CacheSpec) -> Radix:
        return Radix(RadixSettings(), spec)
