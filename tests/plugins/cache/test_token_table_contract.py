from __future__ import annotations

from typing import ClassVar

from camshaft.contracts.cache import CacheSpec
from camshaft.plugins.cache.components import TokenTableSettings
from camshaft.plugins.cache.token_table.manager import TokenTable
from camshaft.plugins.cache.token_table.run_table import RunTable
from camshaft.testing.cache import KVManagerContract


class TestTokenTable(KVManagerContract):
    """With pages of a token, and, in the manager behind it, which takes any, of 2 and 4."""

    kinds: ClassVar[frozenset[str]] = frozenset({"full"})

    def make(self, spec: CacheSpec) -> RunTable:
        made = TokenTable if spec.page_tokens == 1 else RunTable
        return made(TokenTableSettings(), spec)
