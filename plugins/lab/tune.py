"""`engine tune`: whether splitting steps into nano-batches pays on a device, and how to split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from camshaft import add_recipe_arguments, load_recipe, recipe_from_arguments
from camshaft.compose import compose, spare_the_collector
from camshaft.contracts.command import Command
from camshaft.errors import CamshaftError

from .progress import tell
from .subject import executor_of, shape_of
from .tuning.costs import Link, Mix
from .tuning.measuring import survey
from .tuning.report import Report, table
from .tuning.search import Tuned, search
from .tuning.sharded import sharded
from .tuning.steps import Load
from .tuning.written import with_split, without_split

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from camshaft import Recipe, Registry, Settings
    from camshaft.compose import Composed

_LOAD = (
    ("decodes", "requests that decode in the step (half of scheduler.max_running)"),
    ("context", "tokens that each of them has behind it (1,024, or what fits)"),
    ("prompts", "prompts that come beside them (what the step has room for)"),
    ("prompt-tokens", "of each prompt (512, or a quarter of scheduler.step_tokens)"),
)


class Tune(Command):
    """Measures operations, packs them in many ways, and writes the best into a recipe."""

    description: ClassVar[str] = """\
Find out whether steps should be split into nano-batches, whose operations run side by side where
one needs the device's arithmetic, another its memory, and a third the network (NanoFlow, arXiv
2408.12757). Every operation of the model is measured on this device, at several sizes; a model then
packs those of two or three nano-batches for all shares in eighths, and predicts each step's time.

  engine tune recipes/cuda.yaml --decodes 128 --prompts 8
  engine tune recipes/cuda.yaml --write recipes/tuned.yaml
  engine tune recipes/toy.yaml --tensor-parallel 2 --link-gbs 450

--write copies the recipe with another `scheduler`; comments stay, and what --set changed is left
out. If nothing is gained the copy keeps its scheduler, or gets `continuous` for `nano_batch`.
With --tensor-parallel one device's part of the model is measured, with random weights; what it
sends to the others is calculated from the speed of the link.
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        add_recipe_arguments(parser)
        for name, text in _LOAD:
            parser.add_argument(f"--{name}", type=int, metavar="N", help=text)
        parser.add_argument(
            "--tensor-parallel",
            type=int,
            default=1,
            metavar="N",
            help="predict for so many devices, each with its part of every layer (1)",
        )
        parser.add_argument(
            "--link-gbs",
            type=float,
            default=450.0,
            metavar="GB/S",
            help="that each of them sends, while it receives as many (450)",
        )
        parser.add_argument(
            "--link-us",
            type=float,
            default=10.0,
            metavar="US",
            help="microseconds of the smallest sum over all of them (10)",
        )
        parser.add_argument(
            "--write",
            type=Path,
            metavar="FILE",
            help="the new recipe, in the folder of the old one",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def run(self, args: Namespace, registry: Registry) -> int:
        """Measure, search, write and print."""
        _check(args)
        recipe = recipe_from_arguments(args, registry)
        changes = ["engine.warm_up=off"]
        if args.tensor_parallel > 1:
            changes += sharded(recipe, args.tensor_parallel)
        measured = load_recipe(args.recipe, registry, [*args.overrides, *changes])
        composed = compose(measured, progress=tell)
        spare_the_collector()
        try:
            report = _tuned(composed, args)
        finally:
            composed.engine.close()
        print(json.dumps(report.as_mapping()) if args.json else table(report))
        if args.write is not None:
            args.write.write_text(_rewritten(args, recipe, report.tuned), encoding="utf-8")
            tell(f"written: {args.write}")
        return 0


def _check(args: Namespace) -> None:
    """Refuse what makes no sense before anything is loaded."""
    least = {"decodes": 0, "context": 1, "prompts": 0, "prompt_tokens": 2, "tensor_parallel": 1}
    for name, value in least.items():
        given = getattr(args, name)
        if given is not None and given < value:
            option = name.replace("_", "-")
            raise CamshaftError(f"engine tune --{option} {given}: it is at least {value}")
    if args.link_gbs <= 0 or args.link_us < 0:
        raise CamshaftError("engine tune: a link has a speed above 0 and a wait of 0 or more")
    folder = Path(args.recipe).resolve().parent
    if args.write is not None and args.write.resolve().parent != folder:
        raise CamshaftError(
            f"engine tune --write {args.write}: paths in a recipe are relative to its folder, so "
            f"the new one has to stand beside the old one, in {folder}"
        )


def _tuned(composed: Composed, args: Namespace) -> Report:
    load = _load(composed, args)
    link = None
    if args.tensor_parallel > 1:
        shape = shape_of(composed, executor_of(composed, "tune"))
        link = Link(
            args.tensor_parallel,
            args.link_gbs * 1e9,
            args.link_us * 1e-6,
            shape.hidden * shape.itemsize,
        )
    found = survey(composed, load, link, tell)
    title = f"{composed.info.model} on {composed.info.device}"
    return Report(title, load, found, search(found.costs, load.mix))


def _load(composed: Composed, args: Namespace) -> Load:
    """Return the step that is asked for, filled in where the arguments leave that open."""
    scheduler, room = composed.drawing.recipe.scheduler, composed.memory.room
    decodes = scheduler.max_running // 2 if args.decodes is None else args.decodes
    context = min(1024, room - 1) if args.context is None else args.context
    length = args.prompt_tokens or max(2, min(512, scheduler.step_tokens // 4, room - 1))
    prompts = args.prompts
    if prompts is None:
        left = max(0, scheduler.step_tokens - decodes) // length
        prompts = min(left, max(0, scheduler.max_running - decodes))
    return Load(Mix(decodes, prompts), context, length)


def _rewritten(args: Namespace, recipe: Recipe, tuned: Tuned) -> str:
    """Return the recipe's text with the scheduler that suits the device."""
    text = Path(args.recipe).read_text(encoding="utf-8")
    section = set(type(recipe.scheduler).model_fields)

    def known(name: str) -> set[str]:
        return section | set(recipe.registry.get("scheduler", name).settings.model_fields)

    if tuned.minimum_tokens is not None:
        return with_split(text, tuned.best, tuned.minimum_tokens, known("nano_batch"))
    if recipe.scheduler.use.name == "nano_batch":
        return without_split(text, known("continuous"))
    return text
