"""`engine plugins`: what is installed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from ..component import Settings
from ..contracts.command import Command
from ..kinds import KINDS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from ..discovery import Broken
    from ..registry import Registry

COLUMNS = ("kind", "name", "distribution", "version", "status", "summary")


class Plugins(Command):
    """Lists components with their distribution; broken ones with the reason."""

    description: ClassVar[str] = """\
List every component that plugins offer: its kind (the key in a recipe), its name (what a recipe
says after `use:`) and the distribution that brings it.

  engine plugins --kind scheduler
  engine plugins --json | jq '.[] | select(.status != "ok")'

A plugin that cannot be used is listed as broken, with the reason below the table; --json has its
traceback, and the JSON schema of each component's settings.
"""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def add_arguments(self, parser: ArgumentParser) -> None:
        """See `Command.add_arguments`."""
        parser.add_argument("--json", action="store_true", help="print a JSON list")
        parser.add_argument(
            "--kind", choices=list(KINDS), metavar="KIND", help=f"one of {', '.join(KINDS)}"
        )

    def run(self, args: Namespace, registry: Registry) -> int:
        """Print the list; broken plugins do not make the command fail."""
        rows = [row for row in listing(registry) if args.kind in {None, row["kind"]}]
        if args.json:
            print(json.dumps(rows, indent=2))
            return 0
        print(_table(rows))
        for line in dict.fromkeys(registry.warnings()):
            print(f"\n{line}")
        return 0


def listing(registry: Registry) -> list[dict[str, Any]]:
    """Return one row a component or broken plugin, as plain data for JSON."""
    rows: list[dict[str, Any]] = [
        {
            "kind": item.kind,
            "name": item.name,
            "distribution": item.distribution,
            "version": item.version,
            "api_version": item.api_version,
            "summary": item.summary,
            "status": "ok",
            "settings": item.settings_schema(),
        }
        for item in registry.components()
    ]
    rows += [_broken_row(item) for item in registry.broken]
    rows += [
        {
            "kind": "",
            "name": source.entry,
            "distribution": source.distribution,
            "version": source.version,
            "api_version": None,
            "summary": "",
            "status": "disabled",
        }
        for source in registry.disabled
    ]
    return rows


def _broken_row(item: Broken) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "name": item.name or item.source.entry,
        "distribution": item.source.distribution,
        "version": item.source.version,
        "api_version": item.api_version,
        "summary": item.summary,
        "status": "broken",
        "reason": str(item),
        "traceback": item.details,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [COLUMNS, *(tuple(str(row[column] or "-") for column in COLUMNS) for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
