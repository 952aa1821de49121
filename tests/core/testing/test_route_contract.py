from __future__ import annotations

from typing import Any, ClassVar

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from camshaft.contracts.route import Route
from camshaft.testing.rejects import failures
from camshaft.testing.route import RouteContract


class Tokens(Route):
    """Counts, for a start."""

    def mount(self, app: FastAPI, engine: Any) -> None:
        @app.get("/lab/room")
        async def room() -> int:
            return int(engine.info.room)

        @app.post("/lab/echo")
        async def echo(text: dict[str, str]) -> dict[str, str]:
            return text


def verdict(route: type[Route], **attributes) -> list[str]:
    class Contract(RouteContract):
        requests = (("GET", "/lab/room"), ("POST", "/lab/echo"))
        body: ClassVar[dict[str, Any]] = {"text": "hello"}

        def make(self) -> Route:
            return route()

    for name, value in attributes.items():
        setattr(Contract, name, value)
    return failures(Contract)


def test_a_good_route_passes() -> None:
    assert verdict(Tokens) == []


class Nothing(Route):
    def mount(self, app: FastAPI, engine: Any) -> None:
        pass


class Fails(Tokens):
    def mount(self, app: FastAPI, engine: Any) -> None:
        super().mount(app, engine)

        @app.get("/lab/broken")
        async def broken() -> JSONResponse:
            return JSONResponse({}, 500)


class TakesMetrics(Tokens):
    """Works when it is mounted last, and breaks the server when it is mounted first."""

    def mount(self, app: FastAPI, engine: Any) -> None:
        super().mount(app, engine)

        @app.get("/metrics")
        async def metrics() -> str:
            return "mine"


class InFront(Tokens):
    def mount(self, app: FastAPI, engine: Any) -> None:
        super().mount(app, engine)

        @app.get("/health")
        async def health() -> str:
            return "fine"

        app.router.routes.insert(0, app.router.routes.pop())


class Replaces(Tokens):
    def mount(self, app: FastAPI, engine: Any) -> None:
        app.router.routes.clear()
        super().mount(app, engine)


class CatchesAll(Tokens):
    def mount(self, app: FastAPI, engine: Any) -> None:
        super().mount(app, engine)
        app.mount("/", FastAPI(openapi_url="/lab.json"))

        @app.post("/v1/{anything}")
        async def forward(anything: str) -> str:
            return anything


class Middleware(Tokens):
    def mount(self, app: FastAPI, engine: Any) -> None:
        super().mount(app, engine)

        @app.middleware("http")
        async def slow_down(request, call_next):
            return await call_next(request)


class OwnErrors(Tokens):
    def mount(self, app: FastAPI, engine: Any) -> None:
        super().mount(app, engine)
        app.add_exception_handler(404, lambda request, error: JSONResponse({}, 404))


class OneEngine(Tokens):
    """Remembers the first engine for all servers."""

    first: ClassVar[Any] = None

    def mount(self, app: FastAPI, engine: Any) -> None:
        OneEngine.first = OneEngine.first or engine
        seen = OneEngine.first

        @app.get("/lab/room")
        async def room() -> JSONResponse:
            return JSONResponse(seen.healthy, 200 if seen.healthy else 503)

        @app.post("/lab/echo")
        async def echo(text: dict[str, str]) -> dict[str, str]:
            return text


@pytest.mark.parametrize(
    ("route", "test"),
    [
        (Nothing, "test_its_endpoints_answer"),
        (TakesMetrics, "test_the_servers_own_endpoints_stay_its_own"),
        (InFront, "test_the_servers_own_endpoints_stay_its_own"),
        (Replaces, "test_the_servers_own_endpoints_stay_its_own"),
        (CatchesAll, "test_unknown_paths_stay_unknown"),
        (Middleware, "test_only_endpoints_are_added"),
        (OwnErrors, "test_only_endpoints_are_added"),
        (OneEngine, "test_two_servers_in_a_process_do_not_meet"),
    ],
)
def test_a_route_that_breaks_a_promise_is_rejected(route: type[Route], test: str) -> None:
    OneEngine.first = None
    assert test in verdict(route)


def test_an_endpoint_that_fails_is_noticed() -> None:
    asked = (("GET", "/lab/room"), ("GET", "/lab/broken"))
    assert verdict(Tokens, requests=asked) == ["test_its_endpoints_answer"]
    assert "test_its_endpoints_answer" in verdict(Fails, requests=asked)
