"""Managers with tiers for tests: their stores do everything at once, or when a test says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from camshaft.component import Chosen, Component, Settings
from camshaft.plugins.cache.components import (
    FilesSettings,
    MemorySettings,
    TieredSettings,
    camshaft_components,
)
from camshaft.plugins.cache.tiered.manager import Tiered

if TYPE_CHECKING:
    from pathlib import Path

    from camshaft.contracts.cache import CacheSpec

CATALOGUE: dict[tuple[str, str], Component] = {
    (one.kind, one.name): one for one in camshaft_components()
}


def chosen(kind: str, name: str, settings: Settings | None = None) -> Chosen:
    component = CATALOGUE[kind, name]
    return Chosen(component, settings or component.settings())


def memory(capacity: int = 2**20) -> Chosen:
    return chosen("kv_store", "memory", MemorySettings(capacity=capacity))


def files(directory: Path, capacity: int = 2**20) -> Chosen:
    return chosen("kv_store", "files", FilesSettings(directory=directory, capacity=capacity))


def tiered(
    spec: CacheSpec, *tiers: Chosen, over: str = "paged", unit_tokens: int = 4, **more: Any
) -> Tiered:
    settings = TieredSettings(
        over=chosen("cache", over),
        tiers=tiers or (memory(),),
        unit_tokens=unit_tokens,
        **{"threads": 0, "settle_s": 0.0, "load": "always", "patience_s": 1e6, **more},
    )
    return Tiered(settings, spec)
