"""/v1/models, /health, /info, /metrics, and further routes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import httpx
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from camshaft.client import EngineClient, LocalClient
from camshaft.contracts.route import Route
from camshaft.loop.stats import Stats
from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.metrics import BY_LABEL, COUNTERS
from camshaft.plugins.serving.service import Service
from camshaft.recipe import ServerSection
from camshaft.request import Request
from camshaft.testing.scripted import ScriptedEngine


def scrape(server) -> dict[tuple[str, ...], float]:
    response = server.http.get("/metrics")
    assert response.status_code == 200
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_API_01_the_one_model_is_listed_and_described(server) -> None:
    listed = server.http.get("/v1/models").json()
    assert (listed["object"], len(listed["data"])) == ("list", 1)
    assert server.http.get("/v1/models/toy").json() == listed["data"][0]
    assert listed["data"][0] | {"created": 0} == {
        "id": "toy",
        "object": "model",
        "created": 0,
        "owned_by": "camshaft",
        "max_model_len": 256,
    }


def test_API_01_another_model_is_not_found(server) -> None:
    for response in (
        server.http.get("/v1/models/a/b"),
        server.complete("a", model="other"),
        server.chat(model="other"),
    ):
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "model_not_found")
        assert "'toy'" in error["message"]


def test_health_and_info(server) -> None:
    assert server.http.get("/health").json() == {"status": "ok"}
    assert server.http.get("/info").json()["recipe"] == "scripted"


def test_SRV_05_every_answer_names_its_request_and_odd_names_are_replaced(server) -> None:
    def name_of(given: str | None) -> str:
        headers = {} if given is None else {"x-request-id": given}
        answer: str = server.http.get("/v1/models", headers=headers).headers["x-request-id"]
        return answer

    assert name_of("abc-1.2:3") == "abc-1.2:3"
    odd = [name_of(one) for one in (None, "", "a b", "x" * 10_000, "a\tb")]
    assert {len(one) for one in odd} == {32}
    assert len(set(odd)) == 5


def test_SRV_08_metrics_agree_with_what_was_answered(serve, until) -> None:
    server = serve(step_s=0.002, max_running=4)
    for _ in range(5):
        server.complete("echo ab")  # three tokens each, the last is the end
        server.complete("Hello", max_tokens=4)
    server.complete("echo a.b", stop=".")
    server.complete("")
    server.complete("x", n=2, max_tokens=1)
    with httpx.stream(
        "POST", f"{server.url}/v1/completions",
        json={"prompt": "x", "max_tokens": 200, "stream": True},
    ) as leaving:  # fmt: skip
        next(leaving.iter_raw())
    until(lambda: not server.client.open_requests)
    found = scrape(server)
    assert found["camshaft_requests_finished_total", "stop"] == 6
    assert found["camshaft_requests_finished_total", "length"] == 7
    assert found["camshaft_requests_finished_total", "abort"] == 1
    assert found[("camshaft_requests_running",)] == found[("camshaft_requests_waiting",)] == 0
    assert found["camshaft_kv_pages", "0", "in_use"] == 0
    assert found[("camshaft_e2e_seconds_count",)] == 13
    assert found["camshaft_http_requests_total", "/v1/completions", "400"] == 1
    assert found[("camshaft_engine_up",)] == 1
    again = scrape(server)
    assert all(again[key] >= value for key, value in found.items() if key[0].endswith("_total"))


def test_pages_count_in_bytes_too_and_hits_as_a_share(serve) -> None:
    server = serve(pages=10, page_tokens=4)
    server.complete("0123456789", max_tokens=1)
    server.complete("0123456789", max_tokens=1)  # 8 of its 10 tokens are cached
    found = scrape(server)
    assert found[("camshaft_prefix_hit_ratio",)] == 8 / 20
    assert found["camshaft_kv_pages", "0", "free"] == 10
    assert found["camshaft_kv_bytes", "0", "free"] == 10 * 4 * 8
    assert found[("camshaft_kv_unused_tokens",)] == 0


def test_what_a_cache_counts_is_exported_under_its_own_names(serve, monkeypatch) -> None:
    counts = {"memory_hit_tokens": 7.0, "memory_bytes_held": 9.0}
    monkeypatch.setattr(ScriptedEngine, "cache_counters", lambda _: counts)
    found = scrape(serve())
    assert found[("camshaft_cache_memory_hit_tokens_total",)] == 7
    assert found[("camshaft_cache_memory_bytes_held",)] == 9


def test_every_counter_of_the_engine_is_exported() -> None:
    names = {one.name for one in fields(Stats)}
    assert names == {*COUNTERS, *BY_LABEL, "most_in_flight", "prediction_error"}


def test_SRV_02_until_the_engine_is_ready_only_health_and_metrics_answer() -> None:
    go = threading.Event()
    engine = ScriptedEngine()

    def build():
        go.wait(5)
        return engine, engine.traits.info

    client = LocalClient(build)
    service = Service(client, ServerSection(), max_running=1)

    async def ask() -> None:
        transport = httpx.ASGITransport(create_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            health = await http.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "starting")
            refused = await http.post("/v1/completions", json={"prompt": "a"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert refused.json()["error"]["code"] == "starting"
            metrics = await http.get("/metrics")
            assert "camshaft_engine_up 0.0" in metrics.text

    asyncio.run(ask())
    go.set()
    client.close()


def test_SRV_02_an_engine_that_dies_ends_streams_with_an_error_and_then_all_is_503(serve) -> None:
    def script(request: Request) -> Iterator[int]:
        yield from b"abc"
        raise ValueError("broken")

    server = serve(script, step_s=0.01)
    stream = server.complete("x", stream=True)
    assert stream.text.count("data: ") == 4
    assert '"code":"engine_dead"' in stream.text
    assert server.complete("x").json()["error"]["code"] == "dead"
    health = server.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "dead")


class Hello(Route):
    def __init__(self, settings: object) -> None:
        self.settings = settings

    def mount(self, app: FastAPI, engine: EngineClient) -> None:
        @app.get("/hello")
        async def hello() -> dict[str, str]:
            return {"model": engine.info.model}


def test_routes_of_plugins_stand_beside_ours(server) -> None:
    async def ask() -> Any:
        transport = httpx.ASGITransport(create_app(server.service, [Hello(None)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return (await http.get("/hello")).json()

    assert asyncio.run(ask()) == {"model": "toy"}
