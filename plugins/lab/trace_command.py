"""`engine trace`: look into a step that was kept, and run it again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from camshaft import add_change_arguments
from camshaft.compose import compose
from camshaft.contracts.command import Command
from camshaft.executor.trace_files import read_trace

from .progress import tell
from .rerun import rerun, rerun_recipe
from .subject import executor_of

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Iterable, Sequence

    from camshaft import Registry, Settings
    from camshaft.executor.trace_files import TraceHead

    from .rerun import Rerun

_AGREES, _DIFFERS = 0, 1
_SHOWN_ROWS = 20


class Trace(Command):
    """Shows a traced step, or runs it again."""

    description: ClassVar[str] = """\
Look into a step that `--trace` of `engine serve` or `engine run` has kept, or run it again:
eagerly, alone, with the pages that it had. Each layer's queries, keys, values and results are
described, and tokens and logits are compared with those of the trace.

  engine run recipes/quickstart.yaml --prompt "Once upon a time" --trace step --trace-step 2
  engine trace show step
  engine trace rerun step
  engine trace rerun step --plain

The recipe is that of the trace; --set changes it, and --plain leaves every optimisation out. The
model has to be where the recipe says. Exit code 1: the tokens differ.
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        parser.add_argument("action", choices=("show", "rerun"), help="what to do with the trace")
        parser.add_argument("folder", type=Path, metavar="FOLDER", help="that of --trace")
        add_change_arguments(parser)

    def run(self, args: Namespace, registry: Registry) -> int:
        """Print what was kept, and what comes of it now."""
        head, arrays = read_trace(args.folder)
        if args.action == "show":
            _to_screen(described(head))
            return _AGREES
        recipe = rerun_recipe(head, registry, args.overrides, plain=args.plain)
        composed = compose(recipe, progress=tell)
        try:
            found = rerun(executor_of(composed, "trace"), head, arrays)
        finally:
            composed.engine.close()
        _to_screen([*described(head), "", *layers(found), "", *verdicts(head, found)])
        return _AGREES if found.agrees(head) else _DIFFERS


def described(head: TraceHead) -> Iterable[str]:
    """Yield lines about a trace."""
    yield f"step {head.step} of {head.recipe_name} on {head.device}: {head.reason}"
    yield ", ".join(f"{name} {value}" for name, value in head.versions.items())
    yield f"{len(head.rows)} requests, {sum(head.pages)} pages, {head.bytes} bytes"
    for row in head.rows[:_SHOWN_ROWS]:
        result = f"chose {row.chosen}" if row.finite else "logits not finite"
        yield f"  slot {row.slot}: {row.tokens} tokens behind {row.context}, {result}"
    if len(head.rows) > _SHOWN_ROWS:
        yield f"  and {len(head.rows) - _SHOWN_ROWS} more"


def layers(found: Rerun) -> Iterable[str]:
    """Yield a table of what each layer's attention got and made."""
    yield f"{'layer':>5}  {'of':<8} {'rms':>10} {'greatest':>10} {'not finite':>10}"
    for one in found.layers:
        yield (
            f"{one.layer:>5}  {one.what:<8} {one.rms:>10.4g} {one.greatest:>10.4g} "
            f"{one.not_finite:>10}"
        )


def verdicts(head: TraceHead, found: Rerun) -> Iterable[str]:
    """Yield what agrees and what does not."""
    differing = found.differing(head)
    if differing:
        yield f"tokens differ in {len(differing)} of {len(head.rows)} requests:"
        yield from (_difference(head, found, place) for place in differing[:_SHOWN_ROWS])
    else:
        yield f"tokens agree in all {len(head.rows)} requests"
    if found.logit_errors:
        worst = max(found.logit_errors)
        yield f"logits that the trace has differ by at most {worst:.3g}"
    else:
        yield "the trace has no logits: a recorded step keeps its own"


def _difference(head: TraceHead, found: Rerun, place: int) -> str:
    row, now = head.rows[place], found.rows[place]
    return (
        f"  slot {row.slot}: {_result(row.chosen, finite=row.finite)} then, "
        f"{_result(now.chosen, finite=now.finite)} now"
    )


def _result(chosen: Sequence[int], *, finite: bool) -> str:
    return f"{list(chosen)}" if finite else "logits not finite"


def _to_screen(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
