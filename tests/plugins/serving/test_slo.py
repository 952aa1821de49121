"""Wanted times and cancelling, from HTTP to the engine and back."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families


def scrape(server: Any) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(server.http.get("/metrics").text)
        for sample in family.samples
    }


def test_wanted_times_reach_the_engine_in_seconds(server) -> None:
    for ask in (server.complete, server.chat):
        ask(max_tokens=2, ttft_slo_ms=1500, tpot_slo_ms=0.5, priority=3)
        request = server.engine.submitted[-1]
        assert (request.ttft_slo_s, request.tpot_slo_s, request.priority) == (1.5, 0.0005, 3)
    server.complete(max_tokens=2)
    assert server.engine.submitted[-1].ttft_slo_s is None


def test_the_user_is_the_tenant_that_schedulers_are_fair_to(server) -> None:
    for ask in (server.complete, server.chat):
        ask(max_tokens=2, user="Ada")
        assert server.engine.submitted[-1].tenant == "Ada"
    server.complete(max_tokens=2, user=None)
    assert server.engine.submitted[-1].tenant == ""
    refused = server.complete("a", user=7)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "user")


@pytest.mark.parametrize("name", ["ttft_slo_ms", "tpot_slo_ms"])
@pytest.mark.parametrize("value", [0, -5, "soon", True, [1], 3_600_001])
def test_wanted_times_that_are_none_are_refused_by_name(server, name: str, value: Any) -> None:
    response = server.complete("a", **{name: value})
    assert (response.status_code, response.json()["error"]["param"]) == (400, name)


def test_goodput_counts_answers_that_wanted_a_time(serve) -> None:
    server = serve(step_s=0.02)
    server.complete("a", max_tokens=3)
    server.complete("a", max_tokens=3, ttft_slo_ms=60_000, tpot_slo_ms=60_000)
    server.complete("a", max_tokens=3, n=2, tpot_slo_ms=1)
    found = scrape(server)
    assert found["camshaft_slo_choices_total", "met"] == 1
    assert found["camshaft_slo_choices_total", "missed"] == 2
    assert found["camshaft_slack_seconds_count", "ttft"] == 1
    assert found["camshaft_slack_seconds_bucket", "0.0", "tpot"] == 2  # the two that were late


SLO = {"scheduler": {"use": "slo", "predictor": "fitted", "step_tokens": 64, "max_running": 8}}


def test_a_time_that_cannot_be_kept_is_a_429_with_retry_after(serve_toy) -> None:
    server = serve_toy(SLO)
    assert server.complete("Hello", max_tokens=4, ttft_slo_ms=60_000).status_code == 200
    for stream in (False, True):
        late = server.complete("Hello", max_tokens=4, ttft_slo_ms=0.001, n=2, stream=stream)
        assert (late.status_code, late.headers["retry-after"]) == (429, "1")
        error = late.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "refused")
        assert error["message"].startswith("the first token is wanted within 1e-06 s and ")
    found = scrape(server)
    assert found["camshaft_slo_choices_total", "refused"] == 4
    assert found["camshaft_requests_finished_total", "refused"] >= 2
    assert 0 <= found[("camshaft_step_prediction_error",)] < 10_000


def test_an_answer_is_cancelled_by_its_id(serve) -> None:
    server = serve(room=1000, step_s=0.005)
    body = {"prompt": "x", "max_tokens": 900, "stream": True, "request_id": "mine"}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        cancelled = server.http.post("/v1/cancel/cmpl-mine")
        assert cancelled.json() == {"id": "cmpl-mine", "cancelled": 1}
        last = [line for line in lines if line][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled"
    assert server.snapshot().by_label["finished"] == {"abort": 1}


def test_an_answer_that_is_not_streamed_tells_that_it_was_cancelled(serve, until) -> None:
    server = serve(room=1000, step_s=0.005)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.chat, "x", max_tokens=900, request_id="mine", n=2)
        until(lambda: server.client.open_requests == 2)
        server.http.post("/v1/cancel/chatcmpl-mine")
        answer = waiting.result()
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cancelled")


def test_only_open_answers_can_be_cancelled(server) -> None:
    name = server.complete("echo a", max_tokens=9).json()["id"]
    for other in (name, "cmpl-unknown"):
        response = server.http.post(f"/v1/cancel/{other}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_open")
