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
    "STR-07": "each choice opens with its role and ends once",
    "STR-08": "a fault after the header is one error event, and then the end",
    "CHT-01": "a template that refuses its messages, or is missing, is the client's fault",
    "CHT-02": "content in parts is joined as text",
    "CHT-03": "an unfinished answer is continued, from the cache too",
    "TOK-01": "control tokens typed by a user stay text",
    "TOK-02": "empty prompts and ids outside the vocabulary are refused",
    "TOK-04": "prompts that are too long are refused, never shortened",
    "TOK-05": "ids beyond the tokenizer are no text and harm nobody",
    "SMP-01": "extreme legal sampling values are greedy or off, as they say",
    "SMP-02": "parameters out of range are refused by name and touch no stream",
    "SMP-03": "minimum tokens and ignored EOS hold to the token",
    "SMP-05": "a banned word is banned in each of its forms",
    "SMP-07": "penalties count outputs, and repetition the prompt too",
    "SMP-08": "sampling settings do not leak between rows",
    "SMP-09": "n answers are n answers, each with its own end",
    "SMP-10": "an echoed prompt has its own logprobs, with nothing behind it if so wanted",
    "SMP-11": "logprobs of tokens that could not be chosen are JSON",
    "SMP-12": "logprobs are the model's own, whatever is asked for",
    "PFX-01": "a prompt that is wholly cached computes its last token",
    "PFX-02": "logprobs of a cached prompt are complete and its own",
    "PFX-03": "near-duplicates of cached prompts do not collide",
    "PFX-05": "generated tokens are cached for the next turn",
    "PFX-06": "what was computed behind a stop string is not cached",
    "PFX-08": "thousands of requests lose no page",
    "PRE-01": "preempted requests lose and repeat nothing",
    "PRE-02": "a prefix hit after preemption changes what is scheduled, not what is answered",
    "PRE-04": "a host tier of any size loses no answer",
    "ABT-01": "clients that go away free everything",
    "ABT-02": "what was given up while it waited or was read is not run",
    "ABT-04": "what a given up prompt leaves in the cache is right",
    "TIR-01": "a damaged file of a tier is a miss, and answers stay right",
    "TIR-02": "a full disk costs pages, but neither answers nor the tier above",
    "TIR-03": "pages in files survive a restart, and serve no other model",
    "TIR-05": "slow and failing stores stop nobody",
    "CHK-01": "the chunk size changes no answer",
    "SCH-01": "a prompt larger than the pool is refused and blocks nobody",
    "SCH-03": "the most urgent waits for no slot",
    "SCH-04": "a request that waits for much memory is served and stops nobody",
    "QNT-01": "a tied head may be in the file or not, and an own one must be",
    "QNT-02": "missing and misshapen tensors and shards are named",
    "GGF-01": "rows of query and key projections are put in order",
    "GGF-02": "metadata that does not fit is refused, and the template ends turns",
    "NUM-01": "logits that are not finite end only their request",
    "NUM-02": "an answer does not depend on the batch",
    "NUM-03": "recycled pages leak nothing",
    "NUM-04": "a token sees exactly the last ones of its window",
    "NUM-06": "stretched positions are those of transformers, in both spellings",
    "SRV-01": "malformed bodies get small, quick, clear errors",
    "SRV-02": "a dead engine is seen at once, and another is started",
    "SRV-03": "running answers finish after a signal",
    "SRV-05": "request ids of clients may repeat",
    "SRV-06": "huge prompts hold no stream up",
    "SRV-07": "slow, silent and too many clients hold nobody up",
    "SRV-08": "metrics agree with what was answered",
    "API-01": "errors have OpenAI's form and class, wrong keys included",
    "API-02": "tools are refused by name",
    "API-04": "vectors are numbers or base64 as asked for, in order, and alike in any company",
    "MEM-01": "requests leave nothing behind",
    "MEM-03": "memory that cannot be is refused with the figures",
    "PLG-01": "a plugin that fails is named, and nothing falls back silently",
    "PLG-02": "help and the list work whatever is installed",
}
"""Those that hold. An id joins when its test passes."""

TESTS = Path(__file__).parent
_NAME = re.compile(r"def test_([A-Z]{3})_(\d\d)[a-z]?_")


def ids_in_tests() -> set[str]:
    return {
        f"{match[1]}-{match[2]}"
        for path in TESTS.rglob("test_*.py")
        for match in _NAME.finditer(path.read_text())
    }


def test_every_case_has_a_test_named_after_it() -> None:
    assert sorted(set(CASES) - ids_in_tests()) == []
