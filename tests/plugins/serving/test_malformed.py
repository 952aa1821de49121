"""Requests that are no requests, sent byte by byte."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

PATH = "/v1/chat/completions"


def post(body: bytes, *headers: str, kind: str | None = "application/json") -> bytes:
    lines = [f"POST {PATH} HTTP/1.1", "Host: x", *headers]
    if kind is not None:
        lines.append(f"Content-Type: {kind}")
    if not any(one.lower().startswith(("content-length", "transfer")) for one in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


MANY = json.dumps({"messages": [{"role": "nobody", "content": 5}] * 12_000}).encode()
VALID = b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}'

CASES: list[tuple[str, bytes, int]] = [
    ("half an object", post(b"{"), 400),
    ("nothing", post(b""), 400),
    ("blanks", post(b"  \n"), 400),
    ("a list", post(b"[]"), 400),
    ("null", post(b"null"), 400),
    ("a number", post(b"123"), 400),
    ("a string", post(b'"s"'), 400),
    ("no UTF-8", post(b'{"messages": "\xff\xfe"}'), 400),
    ("half a surrogate pair", post(b'{"messages": [{"role": "user", "content": "\\ud800"}]}'), 400),
    ("deep nesting", post(b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}"), 400),
    ("nesting beyond the limit", post(b'{"messages": ' + b"[" * 90 + b"]" * 90 + b"}"), 400),
    ("a long number", post(b'{"max_tokens": ' + b"9" * 5000 + b"}"), 400),
    ("duplicate keys", post(b'{"max_tokens": 1, "max_tokens": 2}'), 400),
    ("12,000 wrong messages", post(MANY), 400),
    ("gzip bytes", post(gzip.compress(VALID)), 400),
    ("gzip as such", post(gzip.compress(VALID), "Content-Encoding: gzip"), 415),
    ("no type", post(VALID, kind=None), 415),
    ("plain text", post(VALID, kind="text/plain"), 415),
    ("a form", post(VALID, kind="application/x-www-form-urlencoded"), 415),
    ("no length", post(b"").replace(b"Content-Length: 0\r\n", b""), 411),
    ("a length too small", post(VALID, "Content-Length: 20"), 400),
    ("a length that is no number", post(VALID, "Content-Length: abc"), 400),
    ("too large by its length", post(b"", "Content-Length: 50000000"), 413),
    ("another method", f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), 405),
    ("an unknown route", b"POST /v1/chats HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 404),
    ("no HTTP", b"\x16\x03\x01 hello\r\n\r\n", 400),
]  # fmt: skip


@pytest.mark.parametrize(("data", "status"), [one[1:] for one in CASES], ids=[c[0] for c in CASES])
def test_SRV_01_it_is_refused_in_json_quickly_and_briefly(
    server, raw: Callable[..., Any], data: bytes, status: int
) -> None:
    connection, began = raw(server), time.monotonic()
    connection.send(data)
    found, headers, body = connection.response()
    assert time.monotonic() - began < 2
    assert (found, headers["content-type"]) == (status, "application/json")
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(body) < 64 * 1024
    assert "Traceback" not in error["message"]
    assert server.alive()


def test_SRV_01_fifty_megabytes_are_not_kept(server, raw) -> None:
    before = psutil.Process().memory_info().rss
    for chunked in (False, True):
        connection = raw(server)
        if chunked:
            connection.send(post(b"", "Transfer-Encoding: chunked"))
            piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
        else:
            connection.send(post(b"", f"Content-Length: {50 * 2**20}"))
            piece = b" " * 2**20
        for _ in range(50):
            connection.send(piece)
        connection.send(b"0\r\n\r\n" if chunked else b"")
        assert connection.response()[0] == 413
    assert psutil.Process().memory_info().rss - before < 200 * 2**20
    assert server.alive()


def test_SRV_01_a_body_that_stops_in_the_middle_is_a_408(serve, raw) -> None:
    server = serve(settings={"body_wait_s": 0.2})
    connection = raw(server)
    connection.send(post(VALID, "Content-Length: 1000"))
    assert connection.response()[0] == 408


def test_a_duplicate_key_is_named(server) -> None:
    content = b'{"prompt": "a", "n": 1, "n": 2}'
    headers = {"content-type": "application/json"}
    response = server.http.post("/v1/completions", content=content, headers=headers)
    assert response.json()["error"]["param"] == "n"


def test_the_method_that_an_endpoint_takes_is_told(server) -> None:
    response = server.http.get("/v1/completions")
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
