"""What routes have in common that stand in an application which may be somebody else's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from camshaft.errors import CamshaftError, RequestError

from .errors import error_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .service import Service

    Endpoint = Callable[[Request], Awaitable[Response]]


def answering(endpoint: Endpoint) -> Endpoint:
    """Answer what an endpoint raises, whoever's application it stands in."""

    async def answering(request: Request) -> Response:
        try:
            return await endpoint(request)
        except TimeoutError:
            return error_response(RequestError("the engine does not answer", status=503))
        except CamshaftError as error:
            return error_response(error)

    return answering


def service_of(request: Request) -> Service:
    """Return what the application serves.

    Raises:
        RequestError: It is not that of camshaft's own server.
    """
    service: Service | None = getattr(request.app.state, "service", None)
    if service is None:
        raise RequestError("this endpoint needs camshaft's own server")
    return service
