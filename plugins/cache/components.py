"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class PagedSettings(Settings):
    """Settings of the `paged` cache: none beyond those of the recipe's `cache` section."""


class LruSettings(Settings):
    """Settings of `lru`: none."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="cache",
            name="paged",
            implementation="camshaft.plugins.cache.paged:Paged",
            settings=PagedSettings,
            summary="pages with reference counts, reused by a chained hash of their tokens",
        ),
        Component(
            kind="eviction",
            name="lru",
            implementation="camshaft.plugins.cache.lru:Lru",
            settings=LruSettings,
            summary="the page that went unused for longest goes first",
        ),
    ]
