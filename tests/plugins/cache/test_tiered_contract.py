from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from camshaft.contracts.cache import CacheSpec
from camshaft.plugins.cache.tiered.manager import Tiered
from camshaft.plugins.cache.tiered.units import Units
from camshaft.testing.cache import KVManagerContract, use_at_random
from camshaft.testing.cache_tiers import Tiers
from camshaft.testing.eviction import LeastRecent
from tests.plugins.cache.tiers import files, memory, tiered


def with_trays(spec: CacheSpec) -> CacheSpec:
    return spec if spec.tray is not None else replace(spec, tray=Tiers().tray)


class TestOverPaged(KVManagerContract):
    tiered = True
    runs = 60

    def make(self, spec: CacheSpec) -> Tiered:
        return tiered(with_trays(spec))


class TestOverRadix(KVManagerContract):
    kinds: ClassVar[frozenset[str]] = frozenset({"full"})
    tiered = True
    runs = 60

    def make(self, spec: CacheSpec) -> Tiered:
        return tiered(with_trays(spec), over="radix")


@pytest.mark.parametrize("over", ["paged", "radix"])
def test_random_use_of_little_memory_and_files(over: str, tmp_path: Path) -> None:
    """Units go on to files, and come back from there."""
    made: list[Tiered] = []

    def make(spec: CacheSpec) -> Tiered:
        little = memory(Units(spec, 4).bytes)
        made.append(tiered(spec, little, files(tmp_path / str(len(made))), over=over))
        return made[-1]

    kinds = ("full", "sliding") if over == "paged" else ("full",)
    seen = use_at_random(make, kinds, LeastRecent, runs=50, steps=60, seed=3, tiered=True)
    assert min(seen[one] for one in ("transfer", "withdraw", "move", "hit", "revoke")) > 0
    counts = [one.counters() for one in made]
    assert sum(one["hit_tokens_memory"] + one["hit_tokens_files"] for one in counts) > 0
    assert sum(one["files_stored"] for one in counts) > 50
