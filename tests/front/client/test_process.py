"""The inbox of an engine process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import msgspec
import pytest
import zmq

from camshaft.client.messages import Abort
from camshaft.client.process import SocketInbox


@pytest.fixture
def sockets() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    context = zmq.Context()
    near, far = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    near.bind("inproc://commands")
    far.connect("inproc://commands")
    yield near, far
    near.close(0)
    far.close(0)
    context.term()


def test_a_thread_can_wake_an_inbox_that_waits(sockets) -> None:
    inbox = SocketInbox(sockets[0])
    threading.Timer(0.02, inbox.wake).start()
    before = time.monotonic()
    assert inbox.take(30) == []
    assert time.monotonic() - before < 10
    assert inbox.take(0.001) == []  # it was woken once


def test_many_calls_wake_it_once_and_lose_no_command(sockets) -> None:
    inbox = SocketInbox(sockets[0])
    for _ in range(100_000):
        inbox.wake()
    sockets[1].send(msgspec.msgpack.encode(Abort("a")))
    assert inbox.take(30) == [Abort("a")]
