"""Find the command, run it, and turn what goes wrong into an exit code."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

from ..component import Settings
from ..errors import CamshaftError, did_you_mean
from ..registry import Registry, disabled_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..contracts.command import Command

OK, FAULT, USAGE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 130

# Core's own commands are not plugins: they must work whatever is installed.
BUILT_IN = {
    "plugins": (
        "camshaft.cli.plugins:Plugins",
        "list what is installed, and what is broken and why",
    ),
    "check": ("camshaft.cli.check:Check", "say everything that is wrong with a recipe"),
    "schema": ("camshaft.cli.schema:Schema", "print the JSON schema of recipes, for editors"),
}

DESCRIPTION = """\
An LLM inference engine composed of plugins by a YAML recipe.

  engine serve recipes/quickstart.yaml                 a server behind the OpenAI API
  engine run recipes/quickstart.yaml --prompt "Hello"  one answer, without a server
  engine check recipes/quickstart.yaml                 every fault of a recipe, with its line
  engine check recipes/quickstart.yaml --set scheduler.step_tokens=128
  engine plugins                                       what there is to compose

A recipe is a YAML file that names the parts of an engine; --set changes a value of it for one call.
"""

EPILOG = """\
exit codes: 0 success, 1 a fault you can fix, 2 wrong usage, 3 a fault of the engine or a plugin
environment: CAMSHAFT_DISABLE=distribution:plugin,... keeps plugins from being loaded
`engine COMMAND --help` tells more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `engine` and return its exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="engine: %(message)s")
    words = list(sys.argv[1:] if argv is None else argv)
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # torch's threads leave cores soon after use
    try:
        return _run(words)
    except CamshaftError as error:
        print(error, file=sys.stderr)
        return FAULT
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the reader went away, as `| head` does; keep the interpreter from flushing into it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except Exception:  # noqa: BLE001 - the last line of defence
        traceback.print_exc()
        print("engine: this is a fault of the engine or of a plugin, not yours.", file=sys.stderr)
        return INTERNAL


def _run(words: list[str]) -> int:
    registry = Registry.discover(disabled=disabled_in(os.environ))
    name = next((word for word in words if not word.startswith("-")), None)
    parser, subparsers = _parser()
    command: Command | None = None
    for known, summary in _summaries(registry).items():
        sub = subparsers.add_parser(known, help=summary, formatter_class=_Raw)
        if known == name:
            command = _load(known, registry)
            sub.description = command.description or summary
            command.add_arguments(sub)
    if name is not None and command is None:
        return _refuse(name, registry)
    args = parser.parse_args(words)
    if command is None:
        parser.print_help()
        return OK
    return command.run(args, registry)


_Raw = argparse.RawDescriptionHelpFormatter


def _parser() -> tuple[
    argparse.ArgumentParser, argparse._SubParsersAction[argparse.ArgumentParser]
]:
    parser = argparse.ArgumentParser("engine", None, DESCRIPTION, EPILOG, formatter_class=_Raw)
    parser.add_argument("--version", action="version", version=f"camshaft {version('camshaft')}")
    return parser, parser.add_subparsers(title="commands", metavar="COMMAND")


def _summaries(registry: Registry) -> dict[str, str]:
    summaries = {name: summary for name, (_, summary) in BUILT_IN.items()}
    for component in registry.components("command"):
        if component.name in BUILT_IN:
            logging.getLogger("camshaft").warning(
                "%s is not offered: `engine %s` is the engine's own.",
                component.origin,
                component.name,
            )
        else:
            summaries[component.name] = component.summary
    return summaries


def _load(name: str, registry: Registry) -> Command:
    if name in BUILT_IN:
        module, _, attribute = BUILT_IN[name][0].partition(":")
        command: Command = getattr(import_module(module), attribute)(Settings())
        return command
    component = registry.get("command", name)
    plugged: Command = component.load()(component.settings())
    return plugged


def _refuse(name: str, registry: Registry) -> int:
    known = list(_summaries(registry))
    hint = did_you_mean(name, known) or "."
    lines = [f"engine: no command is called '{name}'{hint} Commands: {', '.join(known)}."]
    # it may come from a plugin that did not load
    lines += [item.report for item in registry.broken if item.kind in {"", "command"}]
    print("\n".join(lines), file=sys.stderr)
    return USAGE
