"""`engine run`: one prompt, one answer, no server."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.contracts.command import Command
from camshaft.generate import Choice
from camshaft.generate.llm import LLM
from camshaft.recipe import add_recipe_arguments, recipe_from_arguments
from camshaft.request import SamplingParams

from .trace_arguments import add_trace_arguments, trace_order

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import AsyncGenerator

    from camshaft.component import Settings
    from camshaft.generate import Delta
    from camshaft.registry import Registry

_NUMBERS = {
    "temperature": (float, 0.0, "0 is greedy, the default"),
    "top_p": (float, 1.0, "share of probability to choose from"),
    "top_k": (int, 0, "most probable tokens to choose from; 0 is all"),
    "min_p": (float, 0.0, "least probability, relative to the best"),
    "seed": (int, None, "of the random numbers"),
}


class Run(Command):
    """Composes the engine in this process and answers once."""

    description: ClassVar[str] = """\
Answer one prompt in this process and print the text as it comes, then the token ids and timings.

  engine run recipes/quickstart.yaml --prompt "The capital of France is"
  engine run recipes/quickstart.yaml --chat --prompt "What is a camshaft?" --temperature 0.7
  engine run recipes/quickstart.yaml --prompt Hello --json | jq .token_ids
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        add_recipe_arguments(parser)
        parser.add_argument("--prompt", required=True, metavar="TEXT", help="what to continue")
        parser.add_argument(
            "--chat", action="store_true", help="the prompt is a message; use the chat template"
        )
        parser.add_argument(
            "--max-tokens", type=int, default=64, metavar="N", help="at most so many (64)"
        )
        for name, (kind, default, text) in _NUMBERS.items():
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=kind, default=default, metavar="X", help=text)
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        add_trace_arguments(parser)

    def run(self, args: Namespace, registry: Registry) -> int:
        """Print the answer."""
        recipe = recipe_from_arguments(args, registry)
        chosen = {name: getattr(args, name) for name in _NUMBERS}
        params = SamplingParams(max_tokens=args.max_tokens, **chosen)
        show = _nothing if args.json else _to_screen
        began = time.monotonic()
        progress = _nothing if args.json else _to_errors
        with LLM(recipe, progress=progress, trace=trace_order(args)) as llm:
            loaded = time.monotonic()
            if args.chat:
                deltas = llm.achat([{"role": "user", "content": args.prompt}], params)
            else:
                deltas = llm.agenerate(args.prompt, params)
            answer = asyncio.run(_collect(deltas, show))
            report = answer.report(loaded - began) | {
                "model": llm.info.model,
                "recipe": llm.info.recipe,
                "engine": llm.info.version,
            }
        if args.json:
            _to_screen(f"{json.dumps(report)}\n")
        else:
            times = ", ".join(f"{name} {value}" for name, value in report["timings"].items())
            _to_screen(f"\n\ntoken_ids: {report['token_ids']}\ntimings: {times}\n")
        return 0


@dataclass(slots=True)
class _Answer:
    """One choice and when its tokens came, in seconds since the request."""

    choice: Choice = field(default_factory=lambda: Choice(0))
    first_s: float = 0.0
    last_s: float = 0.0

    def report(self, load_s: float) -> dict[str, Any]:
        """Return what `--json` prints."""
        later = len(self.choice.token_ids) - 1
        spent = self.last_s - self.first_s
        return {
            "text": self.choice.text,
            "token_ids": self.choice.token_ids,
            "finish_reason": self.choice.finish,
            "timings": {
                "load_s": round(load_s, 3),
                "ttft_ms": round(self.first_s * 1000, 2),
                "total_s": round(self.last_s, 4),
                "out_tok_s": round(later / spent, 2) if later > 0 and spent > 0 else None,
            },
        }


async def _collect(deltas: AsyncGenerator[Delta], show: Any) -> _Answer:  # noqa: ANN401
    answer, began = _Answer(), time.monotonic()
    async for delta in deltas:
        answer.last_s = time.monotonic() - began
        answer.first_s = answer.first_s or answer.last_s
        answer.choice.add(delta)
        show(delta.text)
    return answer


def _to_screen(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _to_errors(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _nothing(_: str) -> None:
    pass
