"""Endpoints for operators: to empty the cache, to hold requests off, and to give memory back."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.contracts.route import Route
from camshaft.errors import RequestError

from .errors import json_response
from .logs import tell
from .mounting import answering, service_of

if TYPE_CHECKING:
    from camshaft.client import EngineClient
    from camshaft.component import Settings

    from .service import Service

PATH = "/maintenance"

_LOOK_S = 0.02
_SETTLE_S = 10.0
"""For what the engine still does when no request is open: steps in flight, moves of pages."""


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

        async def sleep(request: Request) -> Response:
            freed = await _sleep(service_of(request))
            return json_response({"asleep": True, "freed_bytes": freed})

        async def wake(request: Request) -> Response:
            service = service_of(request)
            await client.wake()
            service.asleep = service.paused = False
            tell("wake", "awake")
            return json_response({"asleep": False})

        for endpoint in (reset_cache, pause, resume, sleep, wake):
            path = f"{PATH}/{endpoint.__name__}"
            app.add_api_route(path, answering(endpoint), methods=["POST"])


def _set_paused(request: Request, *, paused: bool) -> Response:
    service = service_of(request)
    if service.asleep and not paused:
        raise RequestError(f"the server is asleep; POST {PATH}/wake", code="asleep", status=409)
    service.paused = paused
    return json_response({"paused": paused, "open_requests": service.client.open_requests})


async def _sleep(service: Service) -> int:
    """Take no more requests, let those that run end as at a stop, and give memory back.

    Raises:
        RequestError: The engine still had work long after that; the server takes requests again.
    """
    was_paused, service.paused = service.paused, True
    try:
        if not await _idle(service, service.shutdown_s):
            service.client.fail_open("the server goes to sleep")
        freed = await _asleep(service)
    except BaseException:
        service.paused = was_paused
        raise
    service.asleep = True
    tell("sleep", "asleep", logging.INFO, freed_bytes=freed)
    return freed


async def _idle(service: Service, within_s: float) -> bool:
    """Wait until no request is open; return whether that came in time."""
    deadline = time.monotonic() + within_s
    while service.client.open_requests or service.open_calls:
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_LOOK_S)
    return True


async def _asleep(service: Service) -> int:
    """Ask the engine to sleep until it has nothing else to do."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        try:
            return await service.client.sleep()
        except RequestError as error:
            if error.code != "busy" or time.monotonic() > deadline:
                raise
            await asyncio.sleep(_LOOK_S)
