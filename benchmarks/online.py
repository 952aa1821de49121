"""Latency against load: `engine serve` driven over HTTP at several request rates.

The server runs in processes of its own on this machine, and is stopped at the end. Requests arrive
by a Poisson process (`benchmarks.load`), are prompts of random token ids, and stream. A model that
exists as a shape alone gets a vocabulary in which every id is a word, so that every token is text
as it would be with a real one. Before the first rate a burst of answers of all lengths takes the
engine through its batch sizes once.

Run: python -m benchmarks.online --draw benchmarks/results/online.svg
     python -m benchmarks.online --recipe recipes/toy.yaml --rates 5 10 --seconds 1 --prompt 24 \
         --output 8 --warm 4
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import re
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from camshaft import open_recipe
from camshaft.errors import CamshaftError
from camshaft.text.alphabet import CHARACTER_OF

from .curve import draw
from .load import HOST, Order, Point, drive, poisson
from .results import Figure, new_run, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from camshaft import Recipe

READY_S = 180.0
STOP_S = 20.0
SPACE = "\u0120"
"""As byte-level vocabularies write it."""

FEWEST = 10
"""Requests at the lowest rates, where the time alone would give fewer."""

_READY = re.compile(rf"ready: .* on http://{re.escape(HOST)}:(\d+)")


def spell(recipe: Recipe, folder: Path) -> list[str]:
    """Give a model that is only a shape a word for every id; return the overrides that use it.

    Args:
        recipe: Its recipe. Nothing is done where the model has files.
        folder: To write to.
    """
    config = recipe.model.config
    if config is None:
        return []
    pieces = [CHARACTER_OF[number] for number in range(128)]  # ASCII: enough to encode with
    pieces += [f"{SPACE}w{number}" for number in range(128, config["vocab_size"])]
    words = {piece: number for number, piece in enumerate(pieces)}
    rules = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    rules.decoder = tokenizers.decoders.ByteLevel()
    rules.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(dict(config)))
    return ["~model.config", f"model.source=config:{folder}"]


@contextlib.asynccontextmanager
async def serving(recipe: str, overrides: Sequence[str]) -> AsyncIterator[int]:
    """Start `engine serve` on a free port; stop it afterwards.

    Yields:
        The port, when the server is ready.

    Raises:
        CamshaftError: It ended, or was not ready in time. Its output is on stderr.
    """
    settings = [word for one in ("server.port=0", *overrides) for word in ("--set", one)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "camshaft",
        "serve",
        recipe,
        *settings,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    echo = None
    try:
        async with asyncio.timeout(READY_S):
            port = await _port(process.stdout)
        echo = asyncio.create_task(_echo(process.stdout))
        yield port
    except TimeoutError:
        raise CamshaftError(f"the server of {recipe} was not ready in {READY_S:g} s") from None
    finally:
        await _stop(process)
        if echo is not None:
            await echo


async def _port(lines: asyncio.StreamReader) -> int:
    async for line in lines:
        sys.stderr.write(line.decode())
        if found := _READY.search(line.decode()):
            return int(found[1])
    raise CamshaftError("the server ended before it was ready")


async def _echo(lines: asyncio.StreamReader) -> None:
    async for line in lines:
        sys.stderr.write(line.decode())


async def _stop(process: asyncio.subprocess.Process) -> None:
    for send in (process.terminate, process.terminate, process.kill):
        if process.returncode is None:
            send()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_S)


def warming(count: int, prompt: int, vocab: int) -> list[Order]:
    """Return a burst of which two answers end with each step."""
    burst = poisson(1000.0, count, prompt, 4, vocab, seed=0)
    return [Order(0.0, one.prompt, 2 + number // 2) for number, one in enumerate(burst)]


def ask_info(port: int) -> dict[str, Any]:
    """Return what the server says about its engine."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/info")
        found: dict[str, Any] = json.load(connection.getresponse())
    return found


async def sweep(
    recipe: str, overrides: Sequence[str], wanted: argparse.Namespace
) -> tuple[dict[str, Any], list[Point]]:
    """Measure every rate, from the lowest to the highest.

    Returns:
        What the server says about its engine, and the points.
    """
    points = []
    async with serving(recipe, overrides) as port:
        info = ask_info(port)
        if wanted.warm:
            await drive(port, warming(wanted.warm, wanted.prompt, info["vocab"]))
        for rate in sorted(wanted.rates):
            count = max(FEWEST, round(rate * wanted.seconds))
            orders = poisson(rate, count, wanted.prompt, wanted.output, info["vocab"], wanted.seed)
            start = time.perf_counter()
            point = Point.of(rate, await drive(port, orders))
            points.append(point)
            print(
                f"{rate:6g} /s: {point.requests} requests in {time.perf_counter() - start:.1f} s, "
                f"first token {point.ttft.p50:.1f} / {point.ttft.p99:.1f} ms, "
                f"between {point.itl.p50:.2f} / {point.itl.p99:.2f} ms (p50 / p99), "
                f"{point.out_tok_s:.0f} tok/s, {point.failed} failed",
                flush=True,
            )
    return info, points


def figures(point: Point, shape: str, recipe: str, info: dict[str, Any], run: str) -> list[Figure]:
    """Return a point as figures.

    Args:
        point: One rate.
        shape: Tokens in and out, in words.
        recipe: Its file.
        info: What the server says about its engine.
        run: Id of the run.
    """
    values = {
        ("ttft_ms_p50", "ms"): point.ttft.p50,
        ("ttft_ms_p99", "ms"): point.ttft.p99,
        ("itl_ms_p50", "ms"): point.itl.p50,
        ("itl_ms_p99", "ms"): point.itl.p99,
        ("out_tok_s", "tok/s"): point.out_tok_s,
        ("failed", "requests"): point.failed,
    }
    return [
        Figure(
            run_id=run,
            bench="online",
            model=info["model"],
            workload=f"{shape}@{point.rate:g}",
            recipe=recipe,
            engine="camshaft",
            device=info["device"],
            metric=metric,
            unit=unit,
            repeats=[round(value, 3)],
        )
        for (metric, unit), value in values.items()
    ]


def main() -> int:
    """Run the sweep; a figure a line. Returns 1 if a request failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", default="benchmarks/recipes/llama-8b.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="in the recipe")
    parser.add_argument("--rates", type=float, nargs="+", default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--seconds", type=float, default=15.0, help="of arrivals at each rate")
    parser.add_argument("--prompt", type=int, default=512, help="tokens, on average")
    parser.add_argument("--output", type=int, default=128, help="tokens, on average")
    parser.add_argument("--warm", type=int, default=256, help="requests of the first burst")
    parser.add_argument("--seed", type=int, default=1007)
    parser.add_argument("--draw", type=Path, metavar="FILE", help="write the curve as SVG")
    wanted = parser.parse_args()
    _allow_many_connections()
    with tempfile.TemporaryDirectory() as folder:
        spelled = spell(open_recipe(wanted.recipe, wanted.set), Path(folder))
        info, points = asyncio.run(sweep(wanted.recipe, [*wanted.set, *spelled], wanted))
    run, shape = new_run("online"), f"{wanted.prompt}-in-{wanted.output}-out"
    for point in points:
        write(figures(point, shape, wanted.recipe, info, run), "online")
    if wanted.draw is not None:
        title = f"{info['model']} on {info['device']}: {shape}, Poisson arrivals"
        wanted.draw.write_text(draw(points, title), encoding="utf-8")
    return int(any(point.failed for point in points))


def _allow_many_connections() -> None:
    """A thousand open streams need more than the usual limit, here and in the server."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 65536 if hard == resource.RLIM_INFINITY else min(65536, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))


if __name__ == "__main__":
    sys.exit(main())
