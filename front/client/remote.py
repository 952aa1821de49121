"""An engine in a process of its own, over zmq on sockets that only this user can reach."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from .client import EngineClient
from .messages import Dead, Progress, Reply, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.executor.trace_files import TraceOrder
    from camshaft.recipe import Recipe

    from .messages import Command

COMPOSE = "camshaft.client.process:compose_recipe"
"""What builds the engine, unless a test says otherwise."""

_KILL_AFTER_S = 10.0
_LAST_WORDS_MS = 200
"""What a process said before it ended may still be on its way from the socket to the queue."""


class Boot(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine process is told on its standard input, as JSON.

    Attributes:
        builder: `module:function(argument, progress) -> (engine, info)`.
        argument: For it: plain data.
        heartbeat_s: Seconds between signs of life.
        search_path: Where Python looks for modules, so that both processes find the same plugins.
        folder: Holds the sockets; set by the client.
    """

    builder: str = COMPOSE
    argument: dict[str, Any]
    heartbeat_s: float = 1.0
    search_path: list[str] = msgspec.field(default_factory=lambda: list(sys.path))
    folder: str = ""

    @classmethod
    def of(cls, recipe: Recipe, trace: TraceOrder | None = None) -> Boot:
        """Describe a recipe that was read in this process, with the lines of its values.

        Args:
            recipe: It.
            trace: A step to keep.
        """
        argument: dict[str, Any] = {
            "mapping": recipe.as_mapping(),
            "name": recipe.name,
            "origins": dict(recipe.origins),
        }
        if trace is not None:
            argument["trace"] = msgspec.to_builtins(trace)
        return cls(argument=argument, heartbeat_s=recipe.server.heartbeat_s)


class RemoteClient(EngineClient):
    """Starts an engine process and talks to it. The process ends when this one does."""

    def __init__(
        self,
        boot: Boot,
        *,
        progress: Callable[[str], None] = lambda _: None,
        silence_s: float = 10.0,
    ) -> None:
        """Start the process; `wait_ready` or `ready` tell when it takes requests.

        Args:
            boot: What to run.
            progress: Is told what the engine does while it starts, on another thread.
            silence_s: After so many seconds without a sign of life it counts as `silent`.
        """
        super().__init__()
        self._progress = progress
        self._silence_s = silence_s
        self._heard_at = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix="camshaft-"))  # for this user alone: mode 0700
        self._context = zmq.Context()
        self._commands, self._replies = _sockets(self._context, self._folder)
        self._sending = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        boot = msgspec.structs.replace(boot, folder=str(self._folder))
        self._process, self._alive = _spawn(boot)
        self._thread = threading.Thread(target=self._receive, name="camshaft-replies", daemon=True)
        self._thread.start()

    @property
    def process_id(self) -> int:
        """Of the engine process."""
        return self._process.pid

    def close(self) -> None:
        """See `EngineClient.close`. A process that does not end by itself is killed."""
        if not self._ready.done():
            self._process.kill()  # it would read `Stop` only after the weights
        elif not self._death.done():
            self._send(Stop())
        try:
            self._process.wait(_KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join()

    def _send(self, command: Command) -> None:
        message = self._encoder.encode(command)
        with self._sending:
            if not self._commands.closed:
                self._commands.send(message)

    def _is_silent(self) -> bool:
        return time.monotonic() - self._heard_at > self._silence_s

    def _receive(self) -> None:
        decoder = msgspec.msgpack.Decoder(Reply)
        poller = zmq.Poller()
        poller.register(self._replies, zmq.POLLIN)
        poller.register(self._alive, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._replies in ready:
                    self._hear(decoder.decode(self._replies.recv()))
                elif self._alive in ready:
                    break
            while self._replies.poll(_LAST_WORDS_MS):
                self._hear(decoder.decode(self._replies.recv()))
        finally:
            self._bury()

    def _hear(self, reply: Reply) -> None:
        self._heard_at = time.monotonic()
        if isinstance(reply, Progress):
            self._doing = reply.text
            self._progress(reply.text)
        else:
            self._deliver(reply)

    def _bury(self) -> None:
        code = self._process.wait()
        self._deliver(Dead(f"the engine process ended ({_reason(code)})"))
        with self._sending:
            self._commands.close(linger=0)
        self._replies.close(linger=0)
        self._context.term()
        os.close(self._alive)
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _sockets(
    context: zmq.Context[zmq.Socket[bytes]], folder: Path
) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Return the client's ends. Nothing is dropped and nothing blocks: the queues are unbounded."""
    commands, replies = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    for end in (commands, replies):
        end.set_hwm(0)
    # Whoever sends connects: a socket that binds has no queue, and blocks, while nobody is there.
    commands.connect(f"ipc://{folder}/commands")
    replies.bind(f"ipc://{folder}/replies")
    return commands, replies


def _spawn(boot: Boot) -> tuple[subprocess.Popen[bytes], int]:
    """Start the engine process.

    Returns:
        It, and a pipe that can be read, and is at its end, once the process is gone.
    """
    alive, held = os.pipe()
    command = [sys.executable, "-P", "-m", "camshaft.client.process"]
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(held,))
    finally:
        os.close(held)
    assert process.stdin is not None
    process.stdin.write(json.dumps(msgspec.to_builtins(boot)).encode() + b"\n")
    process.stdin.flush()  # and left open: the process ends when this pipe does
    return process, alive


def _reason(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
