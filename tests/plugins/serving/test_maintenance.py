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
