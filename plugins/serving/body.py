"""Reading a JSON object from a request that may hold anything."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from camshaft.errors import RequestError

from .errors import ClientGoneError

if TYPE_CHECKING:
    from starlette.requests import Request

_LARGE = 2**18
"""Bytes from which on a body is parsed on a thread: half a second of parsing holds up no stream."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """What is read.

    Attributes:
        size: Bytes.
        wait_s: Seconds to wait for the next piece.
        depth: Objects and lists inside each other.
    """

    size: int
    wait_s: float
    depth: int


async def read_object(request: Request, limits: BodyLimits) -> dict[str, Any]:
    """Return the JSON object in the body of a request.

    Raises:
        RequestError: With a status for each way in which it is none.
        ClientGoneError: The client left before the end.
    """
    _check_headers(request, limits)
    body = await _read(request, limits)
    if len(body) < _LARGE:
        return _object(body, limits)
    return await asyncio.to_thread(_object, body, limits)


def _object(body: bytes, limits: BodyLimits) -> dict[str, Any]:
    value = _parse(body)
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object")
    _check_depth(value, limits.depth)
    return value


def _check_headers(request: Request, limits: BodyLimits) -> None:
    headers = request.headers
    kind = headers.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != "application/json":
        given = f"not '{kind:.100}'" if kind else "and has none"
        raise RequestError(f"content-type must be application/json, {given}", status=415)
    coding = headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise RequestError(f"content-encoding '{coding:.100}' is not supported", status=415)
    length = headers.get("content-length")
    if length is None and "transfer-encoding" not in headers:
        raise RequestError("content-length is missing", status=411)
    if length is not None and not (length.isascii() and length.isdigit()):
        raise RequestError("content-length is not a number")
    if length is not None and int(length) > limits.size:
        raise _too_large(limits)


async def _read(request: Request, limits: BodyLimits) -> bytes:
    body = bytearray()
    more = True
    while more:
        try:
            async with asyncio.timeout(limits.wait_s):
                message = await request.receive()
        except TimeoutError:
            raise RequestError(
                f"the body stopped after {len(body)} bytes, before its end", status=408
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        body += message.get("body", b"")
        if len(body) > limits.size:
            raise _too_large(limits)
        more = message.get("more_body", False)
    return bytes(body)


def _too_large(limits: BodyLimits) -> RequestError:
    return RequestError(f"the body is larger than {limits.size} bytes", status=413)


def _parse(body: bytes) -> object:
    if not body.strip():
        raise RequestError("the body is empty; it must be a JSON object")
    try:
        value = json.loads(
            body.decode(), object_pairs_hook=_without_duplicates, parse_constant=_refuse_constant
        )
        if b"\\u" in body:  # an escape may have made half a character
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8, at byte {error.start}") from None
    except UnicodeEncodeError:
        raise RequestError("the body holds half of a surrogate pair") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise RequestError(f"'{twice:.100}' is given twice", param=twice[:100])
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"the body holds {name}, which is not JSON")


def _check_depth(value: object, left: int) -> None:
    if left == 0:
        raise RequestError("the body is nested too deeply")
    items = value.values() if isinstance(value, dict) else value
    assert isinstance(items, list | type({}.values()))
    for item in items:
        if isinstance(item, dict | list):
            _check_depth(item, left - 1)
