from __future__ import annotations

from camshaft.contracts.cache import CacheSpec
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.testing.cache import KVManagerContract


class TestPaged(KVManagerContract):
    def make(self, spec: CacheSpec) -> Paged:
        return Paged(PagedSettings(unit_tokens=6), spec)
