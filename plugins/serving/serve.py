"""`engine serve`: the OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, ClassVar

from camshaft.client import Boot, EngineDiedError, RemoteClient, RestartingClient, load_text_of
from camshaft.contracts.command import Command
from camshaft.recipe import add_recipe_arguments, recipe_from_arguments

from .app import create_app
from .keys import Keys
from .logs import FORMATS, LEVELS, set_up, tell
from .server import Serving, bind, run_server
from .service import Service
from .trace_arguments import add_trace_arguments, trace_order

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from camshaft.client import EngineClient
    from camshaft.component import Settings
    from camshaft.executor.trace_files import TraceOrder
    from camshaft.recipe import Recipe
    from camshaft.registry import Registry
    from camshaft.text import TextModel

_OK, _ENGINE_DIED = 0, 3


class Serve(Command):
    """Starts an engine process and the HTTP server before it."""

    description: ClassVar[str] = """\
Serve a recipe behind the OpenAI API: /v1/completions, /v1/chat/completions, /v1/embeddings,
/v1/models; also /health, /metrics and /info. The engine runs in a process of its own. Lines tell
how far the start is; the last is a `curl` that gets an answer.

  engine serve recipes/quickstart.yaml
  engine serve recipes/quickstart.yaml --port 0 --set scheduler.max_running=8

Ctrl-C or SIGTERM stops: what runs may finish for server.shutdown_s; a second one stops at once.
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        add_recipe_arguments(parser)
        parser.add_argument("--host", help="address to listen on, as --set server.host=HOST")
        parser.add_argument("--port", type=int, help="port to listen on; 0 takes a free one")
        parser.add_argument(
            "--log-format",
            choices=FORMATS,
            default="text",
            help="json: every line on standard output is an object, for programs",
        )
        parser.add_argument(
            "--log-level",
            choices=LEVELS,
            help="least serious lines to show; at info each answer and each HTTP request has one "
            "(warning, with json info)",
        )
        add_trace_arguments(parser)

    def run(self, args: Namespace, registry: Registry) -> int:
        """Serve until a signal."""
        for name in ("host", "port"):
            if (value := getattr(args, name)) is not None:
                args.overrides.append(f"server.{name}={json.dumps(value)}")
        recipe = recipe_from_arguments(args, registry)
        order = trace_order(args)
        is_json = args.log_format == "json"
        set_up(args.log_format, args.log_level or ("info" if is_json else "warning"))
        terminal = JsonTerminal() if is_json else Terminal()
        server = recipe.server
        bound = bind(server.host, server.port)
        routes = [one.build() for one in server.routes]
        keys = None if server.api_keys is None else Keys.of_file(server.api_keys)
        terminal.say(
            f"{recipe.name}: starting the engine of '{recipe.model.served_name}'",
            "start",
            recipe=recipe.name,
            model=recipe.model.served_name,
            version=version("camshaft"),
        )
        client = _client(recipe, terminal, order)
        try:
            service = Service(client, server, max_running=recipe.scheduler.max_running, keys=keys)
            serving = Serving(create_app(service, routes), service, server, bound)
            port = bound.getsockname()[1]
            alive = run_server(serving, _start(service, recipe, port, terminal))
        except EngineDiedError as error:
            if error.fixable:
                raise
            terminal.say(f"{error}; its traceback is above")
            alive = False
        finally:
            client.close()
        terminal.say("stopped", "stop", engine_died=not alive)
        return _OK if alive else _ENGINE_DIED


def _client(recipe: Recipe, terminal: Terminal, trace: TraceOrder | None) -> EngineClient:
    """Start the engine process, and another in its place when it dies, if the recipe says so."""
    boot, server = Boot.of(recipe, trace), recipe.server

    def start() -> RemoteClient:
        return RemoteClient(boot, progress=terminal.say, silence_s=server.silence_s)

    if not server.restarts:
        return start()
    return RestartingClient(
        start, most=server.restarts, progress=lambda text: terminal.say(text, "restart")
    )


async def _start(service: Service, recipe: Recipe, port: int, terminal: Terminal) -> None:
    """Wait for both halves, open the gate, and say how to use it."""
    loading = asyncio.ensure_future(asyncio.to_thread(load_text_of, recipe))
    info = await service.client.ready()
    text = await loading
    service.start(text)
    host = recipe.server.host if recipe.server.host not in ("0.0.0.0", "::") else "127.0.0.1"
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    terminal.say(
        f"ready: '{info.model}' on {address}, {info.room} tokens of context",
        "ready",
        model=info.model,
        url=address,
        context_tokens=info.room,
    )
    call = example(address, info.model, text, generates=info.generates)
    terminal.show(f"\nTry it:\n\n  {call}\n")


def example(address: str, model: str, text: TextModel, *, generates: bool = True) -> str:
    """Return a line for a shell that gets an answer."""
    question = "What does a camshaft do?"
    body: dict[str, object]
    if not generates:
        path, body = "embeddings", {"model": model, "input": question}
    elif text.template.source is None:
        path, body = "completions", {"model": model, "prompt": question}
    else:
        messages = [{"role": "user", "content": question}]
        path, body = "chat/completions", {"model": model, "messages": messages}
    if generates:
        body |= {"max_tokens": 64, "temperature": 0}
    return (
        f"curl {address}/v1/{path} -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body))}"
    )


class Terminal:
    """Lines for whoever watches, with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, text: str, event: str = "progress", **fields: object) -> None:
        """Print a line of progress; what it is about is for programs."""
        self.show(f"[{time.monotonic() - self._began:6.1f} s] {text}")

    def show(self, text: str) -> None:
        """Print at once, whoever reads."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


class JsonTerminal(Terminal):
    """The same for programs: events, and no example."""

    def say(self, text: str, event: str = "progress", **fields: object) -> None:
        """Log the event."""
        tell(event, text, text=text, **fields)

    def show(self, text: str) -> None:
        """Print nothing: what is for people would be no JSON."""
