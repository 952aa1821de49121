"""`engine explain`: what a recipe becomes on this machine, and how fast it could be at best."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from camshaft import add_recipe_arguments, recipe_from_arguments
from camshaft.compose import compose
from camshaft.contracts.command import Command
from camshaft.errors import CamshaftError
from camshaft.request import Request, SamplingParams, TokenSpan

from .explanation import Explanation, StepLimit, table
from .progress import tell
from .ranges import Ranges, StepWork
from .rates import measured_rates
from .roofline import limits
from .subject import executor_of, shape_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterator

    from camshaft import Registry, Settings
    from camshaft.compose import Composed

    from .rates import Rates

_CONTEXT = 512
_PROBE_TOKENS = 8


class Explain(Command):
    """Composes an engine and describes it."""

    description: ClassVar[str] = """\
Build the engine of a recipe and say what it became: its components and where each was chosen, every
value that is not a default with the place it comes from, what memory holds, and the least time of
a few steps on this device, which no implementation can beat.

  engine explain recipes/quickstart.yaml
  engine explain recipes/quickstart.yaml --context 4096 --set cache.memory=1GiB
  engine explain recipes/toy.yaml --json | jq .memory

The least time counts the bytes that a step must read or write once and its multiplications, at the
rates that this device reaches in a large copy and a large product, measured in the same call.
`engine check` reads no weights and is quicker.
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        add_recipe_arguments(parser)
        parser.add_argument(
            "--context",
            type=int,
            default=_CONTEXT,
            metavar="N",
            help=f"tokens behind each request that decodes ({_CONTEXT}, or what fits)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, args: Namespace, registry: Registry) -> int:
        """Compose, describe and print."""
        if args.context < 1:
            raise CamshaftError(f"--context {args.context}: it is at least 1")
        recipe = recipe_from_arguments(args, registry)
        composed = compose(recipe, progress=tell)
        try:
            found = explain(composed, args.context)
        finally:
            composed.engine.close()
        print(json.dumps(found.as_mapping()) if args.json else table(found))
        return 0


def explain(composed: Composed, context: int) -> Explanation:
    """Describe an engine that has run nothing yet.

    Args:
        composed: It; a short request runs in it.
        context: Tokens behind each request that decodes.
    """
    recipe, info, memory = composed.drawing.recipe, composed.info, composed.memory
    rates: Rates | None = None
    steps: list[StepLimit] = []
    if recipe.engine.executor.use != "null":  # that one has no model
        dtype: torch.dtype = getattr(torch, recipe.model.dtype)
        tell("measuring what the device can do")
        rates = measured_rates(composed.drawing.hardware.device, dtype)
        steps = list(_steps(composed, rates, max(1, min(context, memory.room - 1))))
    return Explanation(recipe, info, memory, composed.drawing.checkpoint.config, rates, steps)


def _steps(composed: Composed, rates: Rates, context: int) -> Iterator[StepLimit]:
    """Yield the limits of one decoding request, of as many as may run, and of the longest chunk."""
    executor = executor_of(composed, "explain")
    executor.graphs = executor.pieces = None  # what was recorded calls nothing that could be seen
    ranges = Ranges().of(executor)
    _run_a_request(composed)
    shape = shape_of(composed, executor)
    scheduler, memory = composed.drawing.recipe.scheduler, composed.memory
    fit = min(scheduler.max_running, memory.pool_tokens // (context + 1))
    chunk = min(scheduler.step_tokens, memory.room)
    for requests, tokens, before in dict.fromkeys(
        ((1, 1, context), (fit, 1, context), (1, chunk, 0))
    ):
        if requests < 1:
            continue
        lengths = np.full(requests, tokens, dtype=np.int32)
        ranges.steps[:] = [StepWork(lengths, np.full(requests, before, dtype=np.int32), requests)]
        parts = limits(ranges, shape, rates)
        yield StepLimit(
            requests,
            tokens,
            before,
            sum(one.us for one in parts.values()) / 1e6,
            sum(one.memory_us for one in parts.values()) / 1e6,
        )


def _run_a_request(composed: Composed) -> None:
    """Run a prompt and, if there is one, a decode, so that every linear has been seen at work."""
    engine = composed.engine
    tokens = max(1, min(_PROBE_TOKENS, composed.memory.room - 2))
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    if not composed.info.generates:
        params = SamplingParams(max_tokens=1, pooling="mean")
    engine.submit(Request(id="probe", spans=(TokenSpan([0] * tokens),), params=params))
    while engine.has_work:
        engine.step()
