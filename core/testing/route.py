"""The contract of routes, as tests to inherit. Needs FastAPI."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.client import LocalClient

from .scripted import ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fastapi import FastAPI

    from camshaft.client import EngineClient
    from camshaft.contracts.route import Route

OWN = [
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/toy"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
]
"""Endpoints of a server, which no plugin may take over."""


class RouteContract:
    """Subclass it, define `make`, name what the route adds, and run pytest.

    Attributes:
        requests: Method and path of a request to each endpoint that the route adds.
        body: JSON that is sent with those that are not GET.
    """

    requests: ClassVar[Sequence[tuple[str, str]]]
    body: ClassVar[dict[str, Any]] = {}

    def make(self) -> Route:
        """Return the route under test."""
        raise NotImplementedError

    @contextmanager
    def engine(self) -> Iterator[EngineClient]:
        """Serve an engine without a model, whose ids are random letters."""
        engine = ScriptedEngine()
        client = LocalClient(lambda: (engine, engine.traits.info))
        client.wait_ready()
        try:
            yield client
        finally:
            client.close()

    def ask(self, app: FastAPI, method: str, path: str) -> tuple[int, bytes]:
        """Send a request; return status and body."""
        return asyncio.run(ask(app, method, path, json.dumps(self.body).encode()))

    def test_its_endpoints_answer(self) -> None:
        """Where there was nothing before."""
        assert self.requests
        with self.engine() as client:
            app = server()
            assert [self.ask(app, *one)[0] for one in self.requests] == [404] * len(self.requests)
            self.make().mount(app, client)
            for method, path in self.requests:
                status, said = self.ask(app, method, path)
                assert status not in {404, 405}, f"{method} {path}: {status}"
                assert status < 500, f"{method} {path}: {status} {said!r}"

    def test_the_servers_own_endpoints_stay_its_own(self) -> None:
        """Mounted after them, as the server does, or before them."""
        with self.engine() as client:
            after, before = server(), _bare()
            self.make().mount(after, client)
            self.make().mount(before, client)
            _add_own(before)
            for app in (after, before):
                for method, path in OWN:
                    assert self.ask(app, method, path) == (200, b'"own"'), f"{method} {path}"

    def test_unknown_paths_stay_unknown(self) -> None:
        """No endpoint for everything that nobody else wants, and no method but its own."""
        with self.engine() as client:
            app = server()
            self.make().mount(app, client)
            assert self.ask(app, "GET", "/no/such/path")[0] == 404
            assert self.ask(app, "POST", "/v1/no-such-endpoint")[0] == 404
            assert self.ask(app, "DELETE", "/v1/models")[0] == 405

    def test_only_endpoints_are_added(self) -> None:
        """Middleware and error handlers concern everybody, and are the server's."""
        with self.engine() as client:
            app = server()
            before = _of_everybody(app)
            self.make().mount(app, client)
            assert _of_everybody(app) == before

    def test_two_servers_in_a_process_do_not_meet(self) -> None:
        """Each mount serves the engine that it was given; none is needed to mount."""
        with self.engine() as one, self.engine() as other:
            apps = [server(), server()]
            for app, client in zip(apps, (one, other), strict=True):
                self.make().mount(app, client)
            one.close()
            for method, path in self.requests:
                status, said = self.ask(apps[1], method, path)
                assert status < 500, f"{method} {path}: {status} {said!r}"


def server() -> FastAPI:
    """Return an application with the endpoints of a server."""
    app = _bare()
    _add_own(app)
    return app


async def ask(app: FastAPI, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request to an application without a socket; return status and body.

    Raises:
        Exception: What the endpoint raised, if nobody turned it into an answer.
    """
    sent: list[dict[str, Any]] = []
    content = b"" if method == "GET" else body
    incoming = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> dict[str, Any]:
        for message in incoming:
            return message
        await asyncio.sleep(60)  # the client stays and listens
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:  # noqa: ANN401 - ASGI's
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"test"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    status = next(one["status"] for one in sent if one["type"] == "http.response.start")
    return status, b"".join(one.get("body", b"") for one in sent)


def _bare() -> FastAPI:
    from fastapi import FastAPI

    return FastAPI(openapi_url=None)


def _add_own(app: FastAPI) -> None:
    def own() -> str:
        return "own"

    for method, path in OWN:
        app.add_api_route(path.replace("/toy", "/{name}"), own, methods=[method])


def _of_everybody(app: FastAPI) -> list[object]:
    """Return what acts on every request."""
    return [
        list(app.user_middleware),
        dict(app.exception_handlers),
        dict(app.dependency_overrides),
        app.router.default,
    ]
