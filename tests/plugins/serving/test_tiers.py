"""Tiers below the device, over HTTP: damaged files, full disks, restarts, slow stores."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from camshaft.component import Settings
from camshaft.plugins.cache.stores.file_entry import EntryFormat
from camshaft.plugins.cache.stores.memory import MemoryStore
from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.maintenance import Maintenance
from camshaft.testing.toy import LLAMA, pool

PAGE = 16
UNIT_BYTES = PAGE * 2 * 4 * 8 * 2 * 2  # of tokens, k and v, float32, head, heads, layers
MODEL: dict[str, Any] = {"config": {**LLAMA, "num_key_value_heads": 2}, "dtype": "float32"}


def cache(*tiers: dict[str, Any], pages: int = 24, **more: Any) -> dict[str, Any]:
    tiered = {"use": "tiered", "tiers": list(tiers), "load": "always", "settle_s": 0.0, **more}
    return {**tiered, "page_tokens": PAGE, "memory": pool(pages, page_tokens=PAGE)}


def quick(recipe: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "engine": {"deterministic": True, "debug": False}, **recipe}


def memory(units: int) -> dict[str, Any]:
    return {"use": "memory", "capacity": units * UNIT_BYTES}


def files(directory: Path, capacity: str | int = "1GiB") -> dict[str, Any]:
    return {"use": "files", "directory": str(directory), "capacity": capacity}


def prompt(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(length)]


def ask(server: Any, text: list[int], tokens: int = 4) -> tuple[list[int], int]:
    """Return the ids of a greedy answer, and how many prompt tokens were cached."""
    body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    response = server.complete(**body, return_token_ids=True)
    assert response.status_code == 200, response.text
    answer = response.json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["token_ids"], cached


def counted(server: Any) -> dict[str, float]:
    text = server.http.get("/metrics").text
    found = re.findall(r"^camshaft_cache_(\w+)_total ([\d.e+]+)$", text, re.MULTILINE)
    return {name: float(count) for name, count in found}


def held(server: Any, tier: str) -> float:
    text = server.http.get("/metrics").text
    found = re.findall(rf"^camshaft_cache_{tier}_bytes_held ([\d.e+]+)$", text, re.MULTILINE)
    return float(found[0])


def entries(directory: Path) -> set[Path]:
    return set(directory.rglob("*.page"))


def leftovers(directory: Path) -> set[Path]:
    return set(directory.rglob("*.part"))


class Warmed:
    """A server whose prompt P is in files, and neither on the device nor in host memory."""

    def __init__(self, server: Any, directory: Path, until: Callable[..., None]) -> None:
        self.server, self.directory, self.until = server, directory, until
        self.text = prompt(1, 256)
        self.fillers = iter(range(100, 1000))
        self.push_out()
        before = entries(directory)
        self.cold = ask(server, self.text)[0]
        self.until(lambda: len(entries(directory) - before) >= 16, 10.0)
        self.own = sorted(entries(directory) - before)
        self.push_out()

    def push_out(self) -> None:
        """Fill the device and the host's memory with something else, and the disk behind it."""
        before = len(entries(self.directory))
        ask(self.server, prompt(next(self.fillers), 378))
        self.until(lambda: len(entries(self.directory)) >= before + 23, 10.0)

    def again(self) -> int:
        """Ask for P, and return how much of it was cached."""
        ids, cached = ask(self.server, self.text)
        assert ids == self.cold
        self.until(lambda: len([one for one in self.own if one.exists()]) == len(self.own), 10.0)
        self.push_out()
        return cached


def flip(path: Path, _: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def halve(path: Path, _: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path, _: Path) -> None:
    path.write_bytes(b"")


def swap(path: Path, other: Path) -> None:
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)


def lock(path: Path, _: Path) -> None:
    path.chmod(0)


def delete(path: Path, _: Path) -> None:
    path.unlink()


def make_foreign(path: Path, _: Path) -> None:
    form, page = EntryFormat(b"another model", UNIT_BYTES), bytes(UNIT_BYTES)
    path.write_bytes(form.header(b"x", memoryview(page)) + page)


@pytest.fixture
def warmed(serve_toy, tmp_path, until) -> Warmed:
    tiers = cache(memory(22), files(tmp_path / "kv"))
    return Warmed(serve_toy(quick({"cache": tiers})), tmp_path / "kv", until)


def test_TIR_01_a_damaged_file_is_a_miss_and_answers_stay_right(warmed, caplog) -> None:
    assert warmed.again() == 240
    for fault in (flip, halve, empty, swap, make_foreign, delete):
        before = counted(warmed.server)
        fault(warmed.own[5], warmed.own[9])
        cached = warmed.again()
        assert cached < 240, fault.__name__
        after = counted(warmed.server)
        assert after["loads_short"] == before["loads_short"] + 1, fault.__name__
        assert after["files_misses"] > before["files_misses"], fault.__name__
    assert warmed.again() == 240
    told = [one for one in caplog.records if "is damaged" in one.getMessage()]
    assert len(told) == 1
    counts = counted(warmed.server)
    assert (counts["files_damaged"], counts["files_foreign"]) == (3, 3)  # two were swapped


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_TIR_01_a_file_that_cannot_be_read_is_a_miss(warmed) -> None:
    lock(warmed.own[5], warmed.own[9])
    assert warmed.again() < 240
    assert counted(warmed.server)["files_read_errors"] == 1


class SmallDisk:
    """Refuses to let the files of a directory take more than so many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path, size: float) -> None:
        self.directory, self.size, self.refused = directory, size, 0
        self._writev = os.writev
        monkeypatch.setattr(os, "writev", self.writev)

    def used(self) -> int:
        used = 0
        for one in self.directory.rglob("*"):
            with suppress(OSError):
                used += one.stat().st_size
        return used

    def writev(self, file: int, parts: Any) -> int:
        if self.used() + sum(len(part) for part in parts) <= self.size:
            return self._writev(file, parts)
        self.refused += 1
        self._writev(file, [parts[0]])  # the beginning still fits
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_TIR_01_writes_that_fail_half_way_leave_nothing(warmed, monkeypatch) -> None:
    disk = SmallDisk(monkeypatch, warmed.directory, 0)
    ids, cached = ask(warmed.server, [*warmed.text, 7])
    assert cached == 256
    for seed in range(3):
        ask(warmed.server, prompt(2000 + seed, 200))
    warmed.until(lambda: disk.refused > 0, 10.0)
    assert leftovers(warmed.directory) == set()
    assert ask(warmed.server, [*warmed.text, 7])[0] == ids


def test_TIR_02_a_full_disk_costs_pages_but_neither_answers_nor_the_tier_above(
    toy_server, tmp_path, until, monkeypatch
) -> None:
    directory = tmp_path / "kv"
    disk = SmallDisk(monkeypatch, directory, 40 * UNIT_BYTES)
    texts = [prompt(seed, 200) for seed in range(50)]
    with toy_server(quick({"cache": cache(memory(40), files(directory))})) as server:
        first = [ask(server, text, 2) for text in texts]
        assert [cached for _, cached in first] == [0] * 50
        again = [ask(server, text, 2) for text in reversed(texts)]
        assert [ids for ids, _ in again] == [ids for ids, _ in reversed(first)]
        assert disk.refused > 0
        until(lambda: leftovers(directory) == set(), 10.0)
        counts = counted(server)
        assert counts["memory_hits"] > 0
        assert counts["files_evicted"] > 0
        before, disk.size = counts["files_stored"], 10**9
        more = iter(range(100, 1000))

        def stores_again() -> bool:
            ask(server, prompt(next(more), 100))
            return counted(server)["files_stored"] > before + 12

        until(stores_again, 20.0)


def test_TIR_03_pages_survive_a_restart_and_serve_no_other_model(
    toy_server, tmp_path, until
) -> None:
    text, directory = prompt(1, 256), tmp_path / "kv"
    tiers = cache(memory(64), files(directory), settle_s=60.0)
    same = quick({"cache": tiers})
    with toy_server(same) as server:
        wanted, cached = ask(server, text)
        assert cached == 0
    assert len(entries(directory)) >= 16  # written down at the end
    with toy_server(same) as server, toy_server(same) as second:
        assert ask(server, text) == (wanted, 240)
        assert ask(second, text) == (wanted, 240)  # two engines share a directory
    theta = {**MODEL["config"], "rope_theta": 500.0}
    with toy_server(same) as keeper:  # who uses the pages: else another model removes them
        for other in (
            {"model": {**MODEL, "seed": 1}},
            {"model": {**MODEL, "config": theta}},
            {"quant": {"kv": "int8"}},
            {"cache": {**tiers, "page_tokens": 8}},
        ):
            changes = {**same, **other}
            size = {name: changes["cache"][name] for name in ("page_tokens", "memory")}
            with toy_server({**changes, "cache": {**size, "prefix": False}}) as plain:
                wanted_there, _ = ask(plain, text)
            with toy_server(changes) as server:
                assert ask(server, text) == (wanted_there, 0), other
        assert ask(keeper, text) == (wanted, 240)


def test_who_resets_the_cache_finds_nothing_in_tiers_either(serve_toy, tmp_path, until) -> None:
    text, directory = prompt(1, 256), tmp_path / "kv"
    server = serve_toy(quick({"cache": cache(memory(64), files(directory))}))
    app = create_app(server.service, [Maintenance(Settings())])

    async def reset() -> int:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            answer = (await http.post("/maintenance/reset_cache")).json()
        return int(answer["dropped_pages"])

    cold, _ = ask(server, text)
    until(lambda: len(entries(directory)) >= 16, 10.0)
    assert ask(server, text) == (cold, 240)
    assert {held(server, tier) > 0 for tier in ("memory", "files")} == {True}
    assert asyncio.run(reset()) >= 16
    until(lambda: not entries(directory), 10.0)
    assert [held(server, tier) for tier in ("memory", "files")] == [0, 0]
    assert ask(server, text) == (cold, 0)


def test_metrics_tell_what_each_tier_did_and_what_was_evicted(serve_toy) -> None:
    server = serve_toy(quick({"cache": cache(memory(400), pages=24)}))
    texts = [prompt(seed, 256) for seed in range(4)]
    for text in texts * 2:
        ask(server, text)
    counts = counted(server)
    assert counts["hit_tokens_memory"] > 0
    assert counts["loaded_pages"] > 0
    assert {"hit_tokens_device", "prefetched_pages"} <= set(counts)
    assert {"prefetch_hit_pages", "prefetch_wasted_pages"} <= set(counts)
    assert held(server, "memory") >= 4 * 15 * UNIT_BYTES
    metrics = server.http.get("/metrics").text
    assert re.search(r'^camshaft_kv_evicted_pages_total{reason="space"} [1-9]', metrics, re.M)
    assert re.search(r"^camshaft_kv_unused_tokens ", metrics, re.M)


def test_a_start_leaves_tiers_as_they_are(toy_server, tmp_path) -> None:
    text, tiers = prompt(1, 256), cache(memory(64), files(tmp_path / "kv"))
    with toy_server(quick({"cache": tiers})) as server:
        ask(server, text)
    left = entries(tmp_path / "kv")
    assert len(left) >= 16
    with toy_server(quick({"cache": tiers})):
        assert left <= entries(tmp_path / "kv")


KILLED = """
import json, sys
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import compose_toy
model, cache = json.loads(sys.argv[1])
engine = compose_toy(changes={"model": model, "cache": cache}).engine
for turn in range(10**6):
    engine.submit(make_request(f"r{turn}", [(turn * 7 + n * n) % 256 for n in range(200)], 4))
    run_to_end(engine)
    print("turn", turn, flush=True)
"""


def test_TIR_03_an_engine_killed_while_it_writes_leaves_only_whole_pages(
    toy_server, tmp_path, until
) -> None:
    directory = tmp_path / "kv"
    tiers = cache(files(directory))
    command = [sys.executable, "-P", "-c", KILLED, json.dumps([MODEL, tiers])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "turn 3\n":
                break
        process.kill()
    whole = len(entries(directory))
    assert whole > 0
    text = [(n * n) % 256 for n in range(200)]
    with toy_server(quick({"cache": {"prefix": False}})) as plain:
        wanted, _ = ask(plain, text)
    with toy_server(quick({"cache": tiers})) as server:
        assert ask(server, text) == (wanted, 192)
        assert counted(server)["files_damaged"] == 0


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation of the memory store takes 50 ms; one in ten fails."""
    chance = random.Random(0)
    for name in ("get", "put"):
        quick = getattr(MemoryStore, name)

        def slow(self: MemoryStore, digest: bytes, page: memoryview, quick: Any = quick) -> bool:
            time.sleep(0.05)
            if chance.random() < 0.1:
                raise OSError("a bad day")
            result: bool = quick(self, digest, page)
            return result

        monkeypatch.setattr(MemoryStore, name, slow)


def crowd() -> list[list[int]]:
    """Return 16 prompts with 3 beginnings of 128 ids."""
    return [prompt(number % 3, 128) + prompt(50 + number, 20) for number in range(16)]


def test_TIR_05_slow_and_failing_stores_stop_nobody(
    serve_toy, toy_server, until, slow_store
) -> None:
    with toy_server(quick({"cache": {"prefix": False}})) as plain:
        wanted = [ask(plain, text, 12)[0] for text in crowd()]
    scarce = cache(memory(1000), pages=22, patience_s=1.0)
    server = serve_toy(quick({"cache": scarce, "scheduler": {"max_running": 4}}))
    # the same prompt again while its pages are still being stored, and 3 to make room
    assert [ask(server, crowd()[0], 12)[0] for _ in range(2)] == [wanted[0]] * 2
    for number in (0, 1, 2, 4):
        assert ask(server, crowd()[number], 12)[0] == wanted[number]
    until(lambda: counted(server)["memory_stored"] >= 24, 20.0)
    idle_since, longest = time.monotonic(), 0.0
    with ThreadPoolExecutor(20) as threads:
        answers = [threads.submit(ask, server, text, 12) for text in crowd()]
        for number in range(4):
            threads.submit(give_up, server, crowd()[number])
        while not all(one.done() for one in answers):
            shot = server.snapshot()
            if shot.running or not shot.waiting:
                idle_since = time.monotonic()
            longest = max(longest, time.monotonic() - idle_since)
            time.sleep(0.02)
    assert [one.result()[0] for one in answers] == wanted
    assert longest < 2.0
    counts = counted(server)
    assert counts["hit_tokens_memory"] > 0
    assert counts["memory_store_errors"] > 0
    until(lambda: server.snapshot().pools[0].in_use == server.snapshot().pools[0].pinned == 0)
    assert ask(server, crowd()[0], 12)[0] == wanted[0]


def give_up(server: Any, text: list[int]) -> None:
    """Ask, and hang up after a moment."""
    with suppress(httpx.TimeoutException):
        httpx.post(
            f"{server.url}/v1/completions",
            json={"prompt": [*text, 1], "max_tokens": 50, "ignore_eos": True},
            timeout=0.1,
        )
