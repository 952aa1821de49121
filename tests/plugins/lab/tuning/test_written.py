"""A recipe gets another scheduler, and everything else stays as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.plugins.lab.tuning.splits import Split
from camshaft.plugins.lab.tuning.written import with_split, without_split

RECIPES = sorted((Path(__file__).parents[4] / "recipes").glob("*.yaml"))
KNOWN = {"use", "step_tokens", "max_running", "chunk_tokens", "shares", "by", "minimum_tokens"}

BEFORE = """\
# for a chat
model: {source: "package:x"}   # small
plugins:
  - a.py
scheduler:
  use: slo   # was best
  ttft_s: 2.0
  # as many as fit
  step_tokens: 512
  aging_s: 5   # of those
# the weights
quant: none
"""

AFTER = """\
# for a chat
model: {source: "package:x"}   # small
plugins:
  - a.py
scheduler:
  use: nano_batch # was best
  by: tokens
  shares: [0.25, 0.75]
  minimum_tokens: 600
  # as many as fit
  step_tokens: 512
# the weights
quant: none
"""


def _lines(text: str) -> list[str]:
    """Split into lines; how far remarks stand to the right does not matter."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_fields_of_the_old_scheduler_go_and_comments_stay() -> None:
    written = with_split(BEFORE, Split("tokens", (0.25, 0.75)), 600, KNOWN)
    assert _lines(written) == _lines(AFTER)


def test_an_earlier_split_is_replaced() -> None:
    written = with_split(AFTER, Split("phase"), 700, KNOWN)
    assert "shares" not in written
    assert "  by: phase\n  minimum_tokens: 700\n" in written


def test_without_a_split_the_scheduler_is_continuous() -> None:
    written = without_split(AFTER, KNOWN - {"shares", "by", "minimum_tokens"})
    assert _lines(written)[4:9] == [
        "scheduler:",
        "use: continuous # was best",
        "# as many as fit",
        "step_tokens: 512",
        "# the weights",
    ]


@pytest.mark.parametrize("text", ["scheduler: slo\n", "extends: other.yaml\n"])
def test_a_name_alone_or_none_becomes_a_section(text: str) -> None:
    written = with_split(text, Split("phase"), 9, KNOWN)
    assert written.endswith("scheduler: {use: nano_batch, by: phase, minimum_tokens: 9}\n")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_change_in_their_scheduler_alone(path: Path) -> None:
    text = path.read_text()
    written = with_split(text, Split("tokens", (0.5, 0.5)), 1024, KNOWN)
    kept = [line for line in text.splitlines() if not line.startswith("scheduler:")]
    assert [line for line in written.splitlines() if not line.startswith("scheduler:")] == kept
