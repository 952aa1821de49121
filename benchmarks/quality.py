"""What the quickstart recipe's formats cost in quality, against the reference recipe.

Both engines read the same text. At every position the next token of the text is forced, so its
logprob (of the raw logits) is reported whatever the model would have said; alternatives tell what
that is. All of it goes through the engine: scheduler, cache, attention and sampler of the recipe.

Run: python -m benchmarks.quality
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from camshaft import open_recipe
from camshaft.compose import Composed, compose
from camshaft.request import Request, SamplingParams, TokenLogprobs, TokenSpan

from .results import Figure, device, new_run, write

TEXT = """\
The harbour wakes before the town does. At four the first lamps move along the quay, and by five
the boats that went out at midnight are back, low in the water, with gulls above them. Nobody talks
much. Crates go from deck to scale and from scale to cart, and a woman with a pencil behind her ear
writes down numbers that decide what supper will cost in places she has never seen. When the sun
comes over the mole the work is half done. Somebody makes coffee in a dented pot; the cook of the
ferry brings bread, still warm, and is paid in herring. The children come last. They are supposed to
be on their way to school, but they know which of the fishermen can be asked for a story, and which
for a starfish. At eight the bell rings, the quay is hosed down, and the harbour looks as if nothing
had ever happened there. A computer that reads this text has to guess the next word at every point.
Sometimes that is easy, because the sentence leaves only one way out. Sometimes any of a hundred
words would do. The average surprise, measured in bits or as a perplexity, tells how good its
guesses are, and two programs that run the same model should be surprised by the same things.
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a model said at one position of the text."""

    forced: float
    best: int
    top: dict[int, float]


def read(composed: Composed, ids: list[int]) -> list[Reading]:
    """Return a reading for each position but the first."""
    readings = []
    for place in range(1, len(ids)):
        params = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            logprobs=5,
            allowed_token_ids=(ids[place],),
            ignore_eos=True,
        )
        request = Request(id="read", spans=(TokenSpan(ids[:place]),), params=params)
        composed.engine.submit(request)
        found: list[TokenLogprobs] = []
        while composed.engine.has_work:
            for one in composed.engine.step():
                found.extend(one.logprobs)
        top = dict(zip(found[0].top_ids, found[0].top_logprobs, strict=True))
        readings.append(Reading(found[0].logprob, found[0].top_ids[0], top))
    return readings


def perplexity(readings: list[Reading]) -> float:
    """Return the exponential of the mean surprise."""
    return math.exp(-sum(one.forced for one in readings) / len(readings))


def main() -> None:
    """Compare a recipe with the reference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="recipes/quickstart.yaml")
    parser.add_argument("--tokens", type=int, default=256, help="of the text that are read")
    arguments = parser.parse_args()
    reference, tested = (
        compose(open_recipe(name)) for name in ("recipes/reference.yaml", arguments.recipe)
    )
    ids = reference.text.tokenizer.encode(TEXT, special=False)[: arguments.tokens]
    wanted, got = read(reference, ids), read(tested, ids)
    same = [one.best == other.best for one, other in zip(got, wanted, strict=True)]
    gaps = [
        abs(one.top[token] - logprob)
        for one, other in zip(got, wanted, strict=True)
        for token, logprob in other.top.items()
        if token in one.top
    ]
    figures = {
        ("perplexity", "1"): perplexity(got),
        ("perplexity_of_reference", "1"): perplexity(wanted),
        ("argmax_agreement", "share"): sum(same) / len(same),
        ("logprob_gap_mean", "nat"): sum(gaps) / len(gaps),
        ("logprob_gap_max", "nat"): max(gaps),
    }
    run, where = new_run("quality"), device()
    write(
        [
            Figure(
                run_id=run,
                bench="quality",
                model="smollm2-135m",
                workload=f"text-{len(ids)}",
                recipe=arguments.recipe,
                engine="camshaft",
                device=where,
                metric=metric,
                unit=unit,
                repeats=[round(value, 6)],
            )
            for (metric, unit), value in figures.items()
        ],
        "quality",
    )


if __name__ == "__main__":
    main()
