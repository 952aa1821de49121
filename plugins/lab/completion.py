"""`engine completion`: a script with which a shell completes commands, options and `--set`."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, ClassVar

from camshaft.contracts.command import Command
from camshaft.errors import PluginError
from camshaft.recipe import recipe_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from camshaft import Registry, Settings

BUILT_IN = {"check": ("--set", "--plain", "--show"), "plugins": ("--json", "--kind"), "schema": ()}
"""The engine's own commands, which no plugin offers, and their options."""

_BASH = """\
_engine() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
  if [[ $COMP_CWORD == 1 ]]; then
    words="{commands} --help --version"
  elif [[ $before == --set ]]; then
    words="{keys}"; compopt -o nospace 2>/dev/null
  elif [[ $word == -* ]]; then
    case ${{COMP_WORDS[1]}} in
{options}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _engine engine
"""


class Completion(Command):
    """Prints the script for what is installed now."""

    description: ClassVar[str] = """\
Print a script that lets a shell complete the commands of `engine`, their options and the keys of
`--set`; files are completed everywhere else. Print it anew when plugins come or go.

  engine completion bash > ~/.local/share/bash-completion/completions/engine
  engine completion zsh > ~/.engine-completion      # and in ~/.zshrc: source ~/.engine-completion
  engine completion fish > ~/.config/fish/completions/engine.fish
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        shells = ("bash", "zsh", "fish")
        parser.add_argument("shell", choices=shells, help="whose script to print")

    def run(self, args: argparse.Namespace, registry: Registry) -> int:
        """Print it."""
        known, keys = options(registry), sorted(set(overrides(registry)))
        script = _fish(known, keys) if args.shell == "fish" else _bash(known, keys)
        if args.shell == "zsh":
            script = f"autoload -U +X bashcompinit && bashcompinit\n{script}"
        sys.stdout.write(script)
        return 0


def options(registry: Registry) -> dict[str, list[str]]:
    """Return the long options of every command; one that does not load has none."""
    found = {name: [*own, "--help"] for name, own in BUILT_IN.items()}
    for component in registry.components("command"):
        parser = argparse.ArgumentParser(component.name)
        try:
            command: Command = component.load()(component.settings())
        except PluginError:
            continue  # `engine plugins` tells why
        command.add_arguments(parser)
        words = (word for action in parser._actions for word in action.option_strings)
        found.setdefault(component.name, [one for one in words if one.startswith("--")])
    return dict(sorted(found.items()))


def overrides(registry: Registry) -> Iterator[str]:
    """Yield what can be written behind `--set`, up to the value."""
    schema = recipe_schema(registry)
    for name, part in schema["properties"].items():
        if part.get("type") == "array":
            yield f"{name}+="
        for field in _fields(part, schema):
            yield f"{name}.{field}="


def _fields(part: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
    """Yield the names of the fields that any form of a section has."""
    if "$ref" in part:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]]
    yield from part.get("properties", ())
    for branch in part.get("anyOf", ()):
        yield from _fields(branch, schema)


def _bash(known: dict[str, list[str]], keys: list[str]) -> str:
    cases = [f'      {name}) words="{" ".join(words)}" ;;' for name, words in known.items()]
    return _BASH.format(commands=" ".join(known), keys=" ".join(keys), options="\n".join(cases))


def _fish(known: dict[str, list[str]], keys: list[str]) -> str:
    lines = [f"complete -c engine -n __fish_use_subcommand -a '{' '.join(known)}'"]
    for name, words in known.items():
        where = f"complete -c engine -n '__fish_seen_subcommand_from {name}'"
        lines += [f"{where} -l {word[2:]}" for word in words if word != "--set"]
        if "--set" in words:
            lines.append(f"{where} -l set -r -a '{' '.join(keys)}'")
    return "\n".join(lines) + "\n"
