"""The application: endpoints, the gate before them, and the routes of plugins."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from camshaft.errors import RequestError

from .chat import chat
from .completions import complete
from .embeddings import embed, pool
from .errors import error_response, handle_errors, json_response
from .openapi import openapi
from .score import score
from .tokenizing import detokenize, tokenize
from .wire import Model, Models

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from camshaft.contracts.route import Route

    from .service import Service

ALWAYS_OPEN = frozenset({"/health", "/metrics"})
"""Endpoints that answer whatever state the engine is in."""

WITHOUT_KEY = frozenset({"/health"})
"""Endpoints that ask for no key where the server has some."""

_REQUEST_ID = re.compile(rb"[\w.:-]{1,128}")


def create_app(service: Service, routes: Iterable[Route] = ()) -> FastAPI:
    """Build the application.

    Args:
        service: What it serves.
        routes: Further endpoints, of plugins; they are mounted last and stand behind the gate.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.service = service
    handle_errors(app)
    app.add_middleware(Gate, service=service)
    _add_openai(app, service)
    _add_vectors(app, service)
    _add_operations(app, service)
    for route in routes:
        route.mount(app, service.client)
    return app


def _add_openai(app: FastAPI, service: Service) -> None:
    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await complete(service, request)

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await chat(service, request)

    @app.post("/tokenize")
    async def ids_of(request: Request) -> Response:
        return await tokenize(service, request)

    @app.post("/detokenize")
    async def text_of(request: Request) -> Response:
        return await detokenize(service, request)

    @app.post("/v1/cancel/{answer_id}")
    async def cancel(answer_id: str) -> Response:
        return json_response({"id": answer_id, "cancelled": await service.cancel(answer_id)})

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(Models([_model(service)]))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_model(name)
        return json_response(_model(service))


def _add_vectors(app: FastAPI, service: Service) -> None:
    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        return await embed(service, request)

    @app.post("/v1/score")
    async def scores(request: Request) -> Response:
        return await score(service, request)

    @app.post("/pooling")
    async def vectors(request: Request) -> Response:
        return await pool(service, request)


def _add_operations(app: FastAPI, service: Service) -> None:
    @app.get("/health")
    async def health() -> Response:
        ready = service.phase == "ready"
        state: dict[str, Any] = {"status": "ok" if ready else service.phase}
        if not ready:
            state["detail"] = service.client.doing
        return json_response(state, 200 if ready else 503)

    @app.get("/openapi.json")
    async def description() -> Response:
        return json_response(openapi())

    @app.get("/info")
    async def info() -> Response:
        return json_response(service.info)

    @app.get("/metrics")
    async def metrics() -> Response:
        snapshot, page_bytes = None, tuple[int, ...]()
        if service.client.healthy:
            try:
                snapshot = await service.client.snapshot()
                page_bytes = service.client.info.page_bytes
            except TimeoutError:
                return error_response(RequestError("the engine does not answer", status=503))
        text = service.metrics.text(snapshot, page_bytes, service.client.restarts)
        return Response(text, media_type=CONTENT_TYPE_LATEST)


def _model(service: Service) -> Model:
    return Model(service.info.model, service.created, service.info.room)


class Gate:
    """Refuses requests without a key, or that the engine cannot run now. Counts and names all."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or not."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        headers = dict(scope["headers"])
        name = headers.get(b"x-request-id", b"")
        if not _REQUEST_ID.fullmatch(name):
            name = uuid.uuid4().hex.encode()

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                endpoint = getattr(scope.get("route"), "path", "other")
                self._service.metrics.http.labels(endpoint, message["status"]).inc()
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
            await send(message)

        refusal = self._refusal(scope["path"], headers.get(b"authorization"))
        if refusal is not None:
            await error_response(refusal)(scope, receive, counting)
        else:
            await self._app(scope, receive, counting)

    def _refusal(self, path: str, authorization: bytes | None) -> RequestError | None:
        keys = self._service.keys
        if keys is not None and path not in WITHOUT_KEY:
            refusal = keys.refusal(authorization)
            if refusal is not None:
                return refusal
        return None if path in ALWAYS_OPEN else self._service.refusal()
