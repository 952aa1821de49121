"""The engine process: builds an engine, runs its loop, and says that it is alive.

    python -m camshaft.client.process

reads one line of JSON (`Boot`) from its standard input, which then stays open: its end means that
the parent is gone, however it went, and this process follows at once.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from camshaft.executor.trace_files import TraceOrder
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry, disabled_in

from .build import build_engine
from .loop import EngineLoop, dead
from .messages import Beat, Command, Dead, Progress, Ready
from .remote import Boot

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.info import EngineInfo

    from .loop import SteppedEngine
    from .messages import Reply

_STOPPED, _DIED, _ORPHANED = 0, 3, 4


def compose_recipe(
    argument: dict[str, Any], progress: Callable[[str], None]
) -> tuple[SteppedEngine, EngineInfo]:
    """Read the recipe anew, with the plugins of this process, and compose its engine."""
    progress("discovering plugins")
    registry = Registry.discover(disabled=disabled_in(os.environ))
    recipe = parse_recipe(argument["mapping"], registry)
    recipe = replace(recipe, name=argument["name"], origins=argument["origins"])
    order = argument.get("trace")
    trace = None if order is None else msgspec.convert(order, TraceOrder)
    return build_engine(recipe, progress, trace)


class SocketInbox:
    """Commands of the client, from its socket."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._decoder = msgspec.msgpack.Decoder(Command)
        self._bell, self._rung = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._rung, False)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._bell, zmq.POLLIN)

    def wake(self) -> None:
        """See `Inbox.wake`."""
        with suppress(BlockingIOError):  # it is full of calls that were not heard yet
            os.write(self._rung, b"!")

    def take(self, wait_s: float | None) -> list[Command]:
        """See `Inbox.take`."""
        if wait_s != 0:
            ready = self._poller.poll(None if wait_s is None else max(1, round(wait_s * 1000)))
            if (self._bell, zmq.POLLIN) in ready:
                os.read(self._bell, 4096)
        commands: list[Command] = []
        try:
            while True:
                commands.append(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
        except zmq.Again:
            return commands


class Voice:
    """Sends replies; each thread has a voice of its own, for sockets are not shared."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: str) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.set_hwm(0)
        self._socket.connect(f"ipc://{folder}/replies")
        self._encoder = msgspec.msgpack.Encoder()

    def say(self, reply: Reply) -> None:
        """Send; never blocks."""
        self._socket.send(self._encoder.encode(reply))

    def close(self) -> None:
        """Wait until all is on its way."""
        self._socket.close(linger=1000)


def main() -> int:
    """Run the engine process and return its exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="engine: %(message)s")
    # Ctrl-C, and the SIGTERM of a service manager, reach every process; the parent decides what
    # becomes of running requests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Torch's threads, too, leave their cores soon after use: compiled operations want these next.
    # Read when torch is loaded, which is not yet.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    boot = msgspec.json.decode(sys.stdin.buffer.readline(), type=Boot)
    sys.path[:] = boot.search_path
    threading.Thread(target=_follow_parent, args=(boot.folder,), daemon=True).start()
    context = zmq.Context[zmq.Socket[bytes]]()
    silenced = threading.Event()
    beating = threading.Thread(target=_beat, args=(context, boot, silenced), daemon=True)
    beating.start()
    voice = Voice(context, boot.folder)
    died = _serve(context, boot, voice)
    silenced.set()
    beating.join()
    voice.close()
    context.term()
    return _STOPPED if died is None else _DIED


def _serve(context: zmq.Context[zmq.Socket[bytes]], boot: Boot, voice: Voice) -> Dead | None:
    """Build and run; return how the engine died, if it did."""
    fates: list[Dead] = []

    def publish(reply: Reply) -> None:
        if isinstance(reply, Dead):
            fates.append(reply)
            if not reply.fixable:  # what a user can fix the client tells, in a sentence
                sys.stderr.write(f"{reply.details}\n")
        voice.say(reply)

    commands = context.socket(zmq.PULL)
    commands.set_hwm(0)
    commands.bind(f"ipc://{boot.folder}/commands")
    try:
        engine, info = _builder(boot)(boot.argument, lambda text: publish(Progress(text)))
    except Exception as error:  # noqa: BLE001 - the client hears of it, whatever it is
        publish(dead(error, "the engine could not be built"))
    else:
        from camshaft.compose import spare_the_collector  # loads torch: not before the build

        spare_the_collector()
        publish(Ready(info))
        EngineLoop(engine, SocketInbox(commands), publish).run()
    commands.close(linger=0)
    return fates[0] if fates else None


def _builder(boot: Boot) -> Callable[..., tuple[SteppedEngine, EngineInfo]]:
    module, _, name = boot.builder.partition(":")
    builder: Callable[..., tuple[SteppedEngine, EngineInfo]] = getattr(import_module(module), name)
    return builder


def _beat(context: zmq.Context[zmq.Socket[bytes]], boot: Boot, silenced: threading.Event) -> None:
    voice = Voice(context, boot.folder)
    while not silenced.wait(boot.heartbeat_s):
        voice.say(Beat())
    voice.close()


def _follow_parent(folder: str) -> None:
    """End this process when the parent's end of the pipe closes."""
    while os.read(0, 1):
        pass
    shutil.rmtree(Path(folder), ignore_errors=True)
    os._exit(_ORPHANED)  # in the middle of whatever it does: nobody waits for it


if __name__ == "__main__":
    raise SystemExit(main())
