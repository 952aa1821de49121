"""Connections that hold something up: without end, without a reader, or too many."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"


def read_to_the_end(connection: Any) -> None:
    """Wait until the server closes a connection: a time-out is an error."""
    with contextlib.suppress(ConnectionResetError):
        while connection.socket.recv(65536):
            pass


def test_SRV_07_half_a_head_is_a_408_and_silence_is_closed(serve, raw) -> None:
    server = serve(settings={"body_wait_s": 0.2})
    half, silent = raw(server), raw(server)
    half.send(HEAD)
    status, _, body = half.response()
    assert (status, json.loads(body)["error"]["type"]) == (408, "invalid_request_error")
    read_to_the_end(half)
    read_to_the_end(silent)
    assert server.alive()


def test_SRV_07_half_a_head_after_an_answer_is_a_408_too(serve, raw) -> None:
    server = serve(settings={"body_wait_s": 0.2})
    connection = raw(server)
    connection.send(HEAD + b"\r\n")
    assert connection.response()[0] == 200
    connection.send(HEAD)
    assert connection.response()[0] == 408


def test_SRV_07_a_head_without_end_is_a_431(server, raw) -> None:
    connection = raw(server)
    connection.send(HEAD + b"x: " + b"y" * 70_000)
    assert connection.response()[0] == 431
    assert server.alive()


def test_SRV_07_one_connection_too_many_is_a_503_and_the_others_go_on(serve, raw) -> None:
    server = serve(settings={"max_connections": 3})
    held = [raw(server) for _ in range(2)]
    assert server.http.get("/health").status_code == 200  # and is kept open
    status, headers, _ = raw(server).response()
    assert (status, headers["retry-after"]) == (503, "1")
    for connection in held:
        connection.send(HEAD + b"\r\n")
        assert connection.response()[0] == 200


@pytest.fixture
def unread() -> Iterator[Any]:
    """Open streams that nobody reads; close them afterwards."""
    opened: list[socket.socket] = []

    def stream(port: int, body: dict[str, Any]) -> None:
        content = json.dumps(body | {"stream": True}).encode()
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        opened.append(connection)

    yield stream
    for one in opened:
        one.close()


def test_SRV_07_clients_that_do_not_read_hold_nobody_up_and_are_cut_off(
    serve, until, unread
) -> None:
    server = serve(room=15_000, max_running=8, pages=100_000, settings={"reader_wait_s": 0.3})
    for _ in range(2):
        # more than the buffers of two kernels' ends hold
        unread(server.port, {"prompt": "x", "max_tokens": 12_000, "logprobs": 20})
    until(lambda: server.client.open_requests == 2)
    began = time.monotonic()
    assert server.complete("echo fine").json()["choices"][0]["text"] == "fine"
    assert time.monotonic() - began < 5
    until(lambda: not server.client.open_requests, 20)
    assert server.alive()


def test_SRV_07_many_streams_at_once_all_end(serve, events) -> None:
    server = serve(max_running=32)
    body = {"prompt": "x", "max_tokens": 16, "ignore_eos": True, "stream": True}
    limits = httpx.Limits(max_connections=200)
    with (
        httpx.Client(base_url=server.url, timeout=60, limits=limits) as http,
        ThreadPoolExecutor(100) as many,
    ):
        answers = many.map(lambda _: http.post("/v1/completions", json=body), range(300))
        streams = [events(one) for one in answers]
    assert {len(one) for one in streams} == {16}
    assert server.alive()
