from __future__ import annotations

import pytest

from benchmarks import host_step


@pytest.mark.parametrize("cache", host_step.PAGES)
def test_every_manager_is_measured(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_step, "STEPS", 4)
    for page_tokens in host_step.PAGES[cache]:
        times = host_step.microseconds(cache, page_tokens, running=3, repeats=2)
        assert len(times) == 2
        assert min(times) > 0
