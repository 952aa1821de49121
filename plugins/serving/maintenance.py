"""Endpoints for operators: to empty the cache, and to hold new requests off for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.contracts.route import Route

from .errors import json_response
from .mounting import answering, service_of

if TYPE_CHECKING:
    from camshaft.client import EngineClient
    from camshaft.component import Settings

PATH = "/maintenance"


class Maintenance(Route):
    """Off unless a recipe names it: whoever may ask the server may then pause it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def mount(self, app: Any, engine: Any) -> None:  # noqa: ANN401 - as the contract has it
        """See `Route.mount`."""
        client: EngineClient = engine

        async def reset_cache(_: Request) -> Response:
            return json_response({"dropped_pages": await client.reset_cache()})

        async def pause(request: Request) -> Response:
            return _set_paused(request, paused=True)

        async def resume(request: Request) -> Response:
            return _set_paused(request, paused=False)

        for endpoint in (reset_cache, pause, resume):
            path = f"{PATH}/{endpoint.__name__}"
            app.add_api_route(path, answering(endpoint), methods=["POST"])


def _set_paused(request: Request, *, paused: bool) -> Response:
    service = service_of(request)
    service.paused = paused
    return json_response({"paused": paused, "open_requests": service.client.open_requests})
