from __future__ import annotations

import pytest

from benchmarks import cache_host
from camshaft import Registry


@pytest.mark.parametrize(("name", "page_tokens"), [("paged", 16), ("radix", 4), ("token_table", 1)])
def test_every_call_of_a_manager_is_timed(
    name: str, page_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, value in {
        "PROMPT": 200,
        "FILLER": 200,
        "RUNNING": (8, 16),
        "STEPS": 20,
        "REPEATS": 2,
    }.items():
        monkeypatch.setattr(cache_host, what, value)
    registry = Registry.discover()
    times = cache_host.measure(
        registry.get("cache", name), registry.get("eviction", "lru"), page_tokens, pages=300
    )
    assert set(times) == {"decode_8", "decode_16"} | {
        f"{what}_{call}"
        for what in ("hit", "miss", "evict")
        for call in ("match", "admit", "commit", "free")
    }
    assert {len(one) for one in times.values()} == {2, 20}
    assert min(min(one) for one in times.values()) > 0
