"""Public fault reports of inference engines as cases, each with a test named after its id."""

from __future__ import annotations

import re
from pathlib import Path

CASES = {
    "STR-01": "a prompt that ends inside a character does not come back in the first delta",
    "STR-02": "characters of several tokens arrive whole",
    "STR-03": "no character of a stop string leaks into the stream before it matches",
    "STR-04": "what was held back for a stop string is not lost at the end",
    "STR-06": "usage comes once, in a chunk of its own, only when asked for",
    "CHT-01": "a template that refuses its messages, or is missing, is the client's fault",
    "CHT-02": "content in parts is joined as text",
    "TOK-01": "control tokens typed by a user stay text",
    "TOK-02": "empty prompts and ids outside the vocabulary are refused",
    "TOK-04": "prompts that are too long are refused, never shortened",
    "SMP-01": "extreme legal sampling values are greedy or off, as they say",
    "SMP-03": "minimum tokens and ignored EOS hold to the token",
    "SMP-08": "sampling settings do not leak between rows",
    "SMP-09": "n answers are n answers, each with its own end",
    "PFX-01": "a prompt that is wholly cached computes its last token",
    "PFX-03": "near-duplicates of cached prompts do not collide",
    "PFX-05": "generated tokens are cached for the next turn",
    "PFX-06": "what was computed behind a stop string is not cached",
    "PRE-01": "preempted requests lose and repeat nothing",
    "PRE-02": "a prefix hit after preemption changes what is scheduled, not what is answered",
    "ABT-01": "clients that go away free everything",
    "TIR-01": "a damaged file of a tier is a miss, and answers stay right",
    "TIR-02": "a full disk costs pages, but neither answers nor the tier above",
    "TIR-03": "pages in files survive a restart, and serve no other model",
    "TIR-05": "slow and failing stores stop nobody",
    "CHK-01": "the chunk size changes no answer",
    "SCH-01": "a prompt larger than the pool is refused and blocks nobody",
    "GGF-01": "rows of query and key projections are put in order",
    "NUM-02": "an answer does not depend on the batch",
    "NUM-03": "recycled pages leak nothing",
    "SRV-01": "malformed bodies get small, quick, clear errors",
    "PLG-01": "a plugin that fails is named, and nothing falls back silently",
}
"""Those that hold. An id joins when its test passes."""

TESTS = Path(__file__).parent
_NAME = re.compile(r"def test_([A-Z]{3})_(\d\d)_")


def ids_in_tests() -> set[str]:
    return {
        f"{match[1]}-{match[2]}"
        for path in TESTS.rglob("test_*.py")
        for match in _NAME.finditer(path.read_text())
    }


def test_every_case_has_a_test_named_after_it() -> None:
    assert sorted(set(CASES) - ids_in_tests()) == []
