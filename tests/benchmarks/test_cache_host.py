from __future__ import annotations

import pytest

from benchmarks import cache_host
from camshaft import Registry


@pytest.mark.parametrize("name", ["paged", "radix"])
def test_every_call_of_a_manager_is_timed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for what, value in {"PROMPT": 200, "RUNNING": 8, "STEPS": 20, "REPEATS": 2}.items():
        monkeypatch.setattr(cache_host, what, value)
    registry = Registry.discover()
    times = cache_host.measure(
        registry.get("cache", name), registry.get("eviction", "lru"), page_tokens=16, pages=300
    )
    assert set(times) == {"decode"} | {
        f"{what}_{call}"
        for what in ("hit", "miss", "evict")
        for call in ("match", "admit", "commit", "free")
    }
    assert {len(one) for one in times.values()} == {2, 20}
    assert min(min(one) for one in times.values()) > 0
