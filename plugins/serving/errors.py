"""Errors in OpenAI's form, whatever they come from."""

from __future__ import annotations

import logging
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from camshaft.client import EngineDiedError
from camshaft.errors import RequestError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

_log = logging.getLogger("camshaft.server")

_LONGEST_MESSAGE = 2000
"""Characters; a message may quote what a client sent."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    429: "rate_limit_error",
}


class ClientGoneError(Exception):
    """The client closed its connection: there is nobody to answer."""


class ErrorBody(msgspec.Struct):
    """The inner object of an error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    """An error as a body or an event."""

    error: ErrorBody


def error_answer(error: Exception) -> ErrorAnswer:
    """Describe an error for a client; a fault of ours is logged and not told."""
    if isinstance(error, RequestError):
        return _answer(str(error), error.status, error.param, error.code)
    if isinstance(error, EngineDiedError):
        return _answer("the engine is gone", 503, code="engine_dead")
    _log.error("a request failed", exc_info=error)
    return _answer("the server failed; its log tells why", 500, code="internal_error")


def error_response(error: Exception) -> Response:
    """Answer a request with an error."""
    answer = error_answer(error)
    status, headers = 500, dict[str, str]()
    if isinstance(error, RequestError):
        status = error.status
        if error.retry_after_s is not None:
            headers["retry-after"] = str(math.ceil(error.retry_after_s))
        if status == 401:
            headers["www-authenticate"] = "Bearer"
    elif isinstance(error, EngineDiedError):
        status = 503
    return json_response(answer, status, headers)


def json_response(
    content: Any,  # noqa: ANN401 - any record
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    """Answer with a msgspec record, a mapping or a list as JSON."""
    body = msgspec.json.encode(content)
    return Response(body, status, headers=headers, media_type="application/json")


def handle_errors(app: FastAPI) -> None:
    """Make every error of an application answer in this form."""

    async def failed(_: Request, error: Exception) -> Response:
        return error_response(error)

    async def gone(_: Request, __: Exception) -> Response:
        return Response(status_code=499)  # what proxies log for it; it reaches nobody

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path:.200}: {_phrase(error)}"
        return json_response(
            _answer(message, error.status_code), error.status_code, dict(error.headers or {})
        )

    app.add_exception_handler(RequestError, failed)
    app.add_exception_handler(EngineDiedError, failed)
    app.add_exception_handler(ClientGoneError, gone)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, failed)


def _answer(
    message: str, status: int, param: str | None = None, code: str | None = None
) -> ErrorAnswer:
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    return ErrorAnswer(ErrorBody(message[:_LONGEST_MESSAGE], kind, param, code))


def _phrase(error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return "there is no such endpoint"
        case 405:
            return f"this endpoint takes {(error.headers or {}).get('Allow', 'another method')}"
        case status:
            return HTTPStatus(status).phrase
