"""The endpoints of operators."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httpx
import pytest

from camshaft.component import Settings
from camshaft.plugins.serving.app import create_app
from camshaft.plugins.serving.maintenance import Maintenance
from camshaft.testing.route import RouteContract


class TestContract(RouteContract):
    requests: ClassVar = [("POST", "/maintenance/reset_cache")]

    def make(self) -> Maintenance:
        return Maintenance(Settings())


@pytest.fixture
def ask(serve) -> Any:
    server = serve(page_tokens=4)
    app = create_app(server.service, [Maintenance(Settings())])

    def ask(method: str, path: str, body: Any = None) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                return await http.request(method, path, json=body)

        return asyncio.run(send())

    return ask


def test_the_cache_is_emptied(ask) -> None:
    def cached() -> int:
        body = {"prompt": "0123456789", "max_tokens": 1}
        usage = ask("POST", "/v1/completions", body).json()["usage"]
        tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
        return tokens

    assert (cached(), cached()) == (0, 8)
    assert ask("POST", "/maintenance/reset_cache").json() == {"dropped_pages": 2}
    assert cached() == 0


def test_a_paused_server_refuses_what_would_run_and_says_so_in_its_health(ask) -> None:
    assert ask("POST", "/maintenance/pause").json() == {"paused": True, "open_requests": 0}
    refused = ask("POST", "/v1/completions", {"prompt": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "paused")
    assert refused.headers["retry-after"] == "30"
    health = ask("GET", "/health")
    assert (health.status_code, health.json()["status"]) == (503, "paused")
    assert ask("GET", "/v1/models").status_code == 200
    assert ask("POST", "/maintenance/resume").json()["paused"] is False
    assert ask("POST", "/v1/completions", {"prompt": "echo a"}).status_code == 200


def test_they_are_not_there_unless_named(server) -> None:
    assert server.http.post("/maintenance/pause").status_code == 404


def test_a_server_that_sleeps_refuses_what_would_run_until_it_is_woken(ask) -> None:
    slept = ask("POST", "/maintenance/sleep").json()
    assert slept == {"asleep": True, "freed_bytes": 1000 * 4 * 8}
    refused = ask("POST", "/v1/completions", {"prompt": "a"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "asleep")
    assert ask("GET", "/health").json()["status"] == "asleep"
    assert ask("POST", "/maintenance/resume").status_code == 409
    assert ask("POST", "/maintenance/wake").json() == {"asleep": False}
    assert ask("POST", "/v1/completions", {"prompt": "echo a"}).status_code == 200


async def test_what_runs_may_end_before_the_sleep_and_no_longer_than_a_stop_would_wait(
    serve,
) -> None:
    server = serve(step_s=0.01, settings={"shutdown_s": 0.3})
    app = create_app(server.service, [Maintenance(Settings())])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:

        def ask(tokens: int) -> asyncio.Task[httpx.Response]:
            body = {"prompt": "a", "max_tokens": tokens, "ignore_eos": True}
            return asyncio.ensure_future(http.post("/v1/completions", json=body))

        short, long = ask(8), ask(200)
        while server.client.open_requests < 2:
            await asyncio.sleep(0.001)
        slept = await http.post("/maintenance/sleep")
        assert slept.json()["asleep"] is True
        assert (await short).status_code == 200
        stopped = await long
    assert (stopped.status_code, stopped.json()["error"]["code"]) == (503, "stopping")


async def test_an_engine_takes_no_requests_while_it_sleeps(serve_toy) -> None:
    from camshaft.errors import RequestError
    from camshaft.testing.engines import make_request

    client = serve_toy({}).client
    assert await client.sleep() > 0
    with pytest.raises(RequestError, match="the engine is asleep"):
        _ = [one async for one in client.generate(make_request("a", [1, 2], 2))]
    await client.wake()
    assert [one async for one in client.generate(make_request("b", [1, 2], 2))]
