"""Streams: what they carry, how they end, and what happens when the client does."""

from __future__ import annotations

import contextlib
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest


@pytest.mark.parametrize("stop", ["t th", ["zz", "there", "the", "th"]])
def test_STR_03_the_stream_ends_where_the_stop_string_begins(
    server, events, joined, stop: object
) -> None:
    asked = {"prompt": "echo out there", "stop": stop, "max_tokens": 30}
    whole = server.complete(**asked).json()["choices"][0]
    chunks = events(server.complete(**asked, stream=True))
    assert joined(chunks) == whole["text"] == ("ou" if stop == "t th" else "out ")
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert "out there".startswith(joined(chunks))


def test_STR_03_the_stop_string_is_included_on_request(server, events, joined) -> None:
    asked = {"prompt": "echo out there", "stop": "t th", "include_stop_str_in_output": True}
    assert server.complete(**asked).json()["choices"][0]["text"] == "out th"
    assert joined(events(server.complete(**asked, stream=True))) == "out th"


def test_STR_04_a_stop_string_that_never_comes_costs_nothing(server, events, joined) -> None:
    for count in range(1, 17):
        asked = {"prompt": "Hello", "temperature": 0, "max_tokens": count}
        plain = server.complete(**asked).json()["choices"][0]["text"]
        chunks = events(server.complete(**asked, stop=["\u2603ZZZZZZZZZZ"], stream=True))
        assert joined(chunks) == plain
        reasons = [one["finish_reason"] for chunk in chunks for one in chunk["choices"]]
        assert [one for one in reasons if one] == ["length"]


def test_STR_02_characters_of_several_tokens_come_whole(server, events, joined) -> None:
    def ask(_: int) -> Any:
        return server.complete("echo 日本語😀ไทย", stream=True, max_tokens=64, n=2)

    with ThreadPoolExecutor(8) as pool:
        streams = [events(one) for one in pool.map(ask, range(8))]
    for chunks in streams:
        assert [joined(chunks, index) for index in range(2)] == ["日本語😀ไทย"] * 2
        assert "\ufffd" not in json.dumps(chunks, ensure_ascii=False)


def test_STR_08_a_fault_after_the_header_is_one_error_event(server, events, joined) -> None:
    with ThreadPoolExecutor(2) as pool:
        bad = pool.submit(server.complete, "BOOM", stream=True)
        good = pool.submit(server.complete, "echo fine", stream=True)
    assert joined(events(good.result())) == "fine"
    blocks = bad.result().text.strip().split("\n\n")
    assert len(blocks) == 4
    error = json.loads(blocks[-1].removeprefix("data: "))["error"]
    assert (error["message"], error["type"]) == ("the sampler failed", "server_error")
    assert "DONE" not in bad.result().text
    assert server.alive()


def test_the_same_fault_has_a_status_where_nothing_was_sent(server) -> None:
    response = server.complete("BOOM")
    assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_error")


def test_ABT_01_requests_of_clients_that_leave_are_aborted(serve, until) -> None:
    server = serve(room=3000, step_s=0.005, max_running=8)
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True}

    def leave(stream: bool) -> None:
        asked = body | {"stream": stream}
        limits = httpx.Timeout(5, read=0.3)
        with (
            contextlib.suppress(httpx.ReadTimeout),  # nothing came: not streamed
            httpx.stream(
                "POST", f"{server.url}/v1/completions", json=asked, timeout=limits
            ) as response,
        ):
            next(response.iter_raw())

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(leave, [True, False] * 10))
    until(lambda: not server.client.open_requests, 2)
    idle = server.snapshot()
    assert (idle.running, idle.waiting, idle.pools[0].in_use) == (0, 0, 0)
    assert idle.by_label["finished"] == {"abort": 20}
    time.sleep(0.1)
    assert server.snapshot().counters["output_tokens"] == idle.counters["output_tokens"]


def test_ABT_02_a_queued_request_whose_client_left_is_never_run(serve, until) -> None:
    server = serve(room=1000, step_s=0.005, max_running=1)
    with httpx.stream(
        "POST", f"{server.url}/v1/completions",
        json={"prompt": "x", "max_tokens": 900, "stream": True},
    ) as first:  # fmt: skip
        pieces = first.iter_raw()
        next(pieces)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{server.url}/v1/completions", json={"prompt": "y" * 99}, timeout=0.2)
        until(lambda: server.snapshot().waiting == 0)
    assert server.complete("echo next").json()["choices"][0]["text"] == "next"
    assert server.snapshot().counters["prompt_tokens"] == 1 + 9


def test_a_full_queue_is_a_429_at_once(serve, until) -> None:
    server = serve(room=1000, step_s=0.01, max_running=1, settings={"max_queue": 1})
    body = {"prompt": "x", "max_tokens": 900, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as first:
        pieces = first.iter_raw()
        next(pieces)
        with ThreadPoolExecutor(1) as pool:
            queued = pool.submit(server.complete, "echo queued")
            until(lambda: server.client.open_requests == 2)
            refused = server.complete("echo refused")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert refused.json()["error"]["type"] == "rate_limit_error"
            first.close()
            assert queued.result().json()["choices"][0]["text"] == "queued"
    assert server.complete("x", n=3).json()["error"]["param"] == "n"
