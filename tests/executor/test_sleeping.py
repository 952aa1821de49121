"""What an engine gives back while it sleeps, and that it answers as before when it wakes."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
import torch

from camshaft.errors import DeviceError
from camshaft.executor.graphs import DecodeGraphs
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import compose_toy, pool

POOL = 256 * 2**20
PROMPT = list(range(40, 90))


def resident() -> int:
    found: int = psutil.Process().memory_info().rss
    return found


def answer(engine: Any, name: str) -> list[int]:
    engine.submit(make_request(name, PROMPT, 12, ignore_eos=True))
    found = run_to_end(engine)[name]
    return [*found.token_ids, found.cached_tokens]


def test_the_memory_of_the_pool_goes_and_comes_and_answers_stay() -> None:
    engine = compose_toy(
        changes={"cache": {"memory": str(POOL)}, "engine": {"debug": False}}
    ).engine
    for group in engine.parts.executor.parts.groups:  # type: ignore[attr-defined]
        for field in group.all_fields():
            field.zero_()  # memory that nobody wrote to is not there yet
    wanted = answer(engine, "a")
    awake = resident()
    freed = engine.sleep()
    assert 0.99 * POOL <= freed <= POOL
    assert awake - resident() > 0.95 * freed
    engine.wake()
    assert awake - resident() < 0.05 * freed
    assert answer(engine, "b") == wanted, "nothing is cached, and all is as it was"
    assert answer(engine, "c")[-1] == 48
    engine.close()


def test_a_tier_still_has_what_it_was_given() -> None:
    cache = {
        "use": "tiered",
        "tiers": [{"use": "memory", "capacity": "1MiB"}],
        "threads": 0,
        "memory": pool(32),
        "unit_tokens": 16,
    }
    engine = compose_toy(changes={"cache": cache}).engine
    tokens = answer(engine, "a")[:-1]
    while engine.has_work:
        engine.step()
    engine.sleep()
    engine.wake()
    *again, cached = answer(engine, "b")
    assert (again, cached) == (tokens, 48)
    engine.close()


@pytest.mark.usefixtures("recordable")
def test_steps_that_were_recorded_are_recorded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = compose_toy().engine
    executor = engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    executor.graphs = DecodeGraphs(executor, 8, 512)
    recorded: list[int] = []
    record = DecodeGraphs._record

    def counting(self: DecodeGraphs, size: int, *rest: Any) -> Any:
        recorded.append(size)
        return record(self, size, *rest)

    monkeypatch.setattr(DecodeGraphs, "_record", counting)
    wanted = answer(engine, "a")
    engine.sleep()
    engine.wake()
    assert answer(engine, "b") == wanted
    assert recorded == [1, 1]


def test_an_engine_stays_asleep_where_its_memory_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = compose_toy().engine
    wanted = answer(engine, "a")
    engine.sleep()
    resize = torch.UntypedStorage.resize_

    def full(self: torch.UntypedStorage, size: int) -> None:
        if size:
            raise RuntimeError("out of memory")
        resize(self, size)

    with monkeypatch.context() as patched:
        patched.setattr(torch.UntypedStorage, "resize_", full)
        with pytest.raises(DeviceError, match="the 1 MiB of the cache are not free any more"):
            engine.wake()
    engine.wake()
    assert answer(engine, "b") == wanted
