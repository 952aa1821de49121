"""What a recipe's formats and kernels cost in quality, against the same model in float32 on a CPU.

Both engines are forced through the same text, and the whole distributions before every token are
compared. Then both continue prompts by themselves, and their tokens are compared up to the first
that the reference itself was in doubt of. The text is this repository's own prose.

Run: python -m benchmarks.quality
     python -m benchmarks.quality --device cuda
     python -m benchmarks.quality --device cuda --set model.dtype=float32 --check

`CAMSHAFT_MODEL` names the GGUF file where the package that holds it is not installed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from camshaft import open_recipe
from camshaft.compose import compose

from .agreement import BARS, Bar, compare, continue_greedily, same_beginnings
from .results import Figure, device, new_run, write
from .teacher import read, stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

HARBOUR = """\
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

ROOT = Path(__file__).parents[1]
PAGES = ("LICENSE", "README.md", "docs/design.md", "docs/plugins.md")
RECIPES = {"cpu": "recipes/quickstart.yaml", "cuda": "recipes/cuda.yaml"}

REFERENCE = "recipes/reference.yaml"
QUICKER = ("attention=sdpa", "engine.deterministic=false")
"""The reference without its slow twins: half the time, and logits within 2e-4 of theirs."""

PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 50, 40, 48


def text() -> str:
    """Return what is read."""
    return HARBOUR + "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)


def source() -> list[str]:
    """Return the override that `CAMSHAFT_MODEL` stands for."""
    path = os.environ.get("CAMSHAFT_MODEL")
    return [f"model.source={Path(path).resolve()}"] if path else []


class Subject:
    """One engine, and what it makes of the text.

    Attributes:
        recipe: Its file.
        dtype: Of its activations.
        device: Its name.
        forced: int64 [P], the tokens of all positions.
        logits: float32 [P, V] before each of them, on the engine's device.
        answers: Greedy continuations of pieces of the text.
        seconds: All of it took.
    """

    def __init__(
        self, recipe: str, overrides: Sequence[str], positions: int, logprobs: int | None = None
    ) -> None:
        """Compose the engine, read, and close it.

        Args:
            recipe: Its file.
            overrides: As `--set`.
            positions: How many tokens of the text to read.
            logprobs: Alternatives to report with the answers.
        """
        start = time.perf_counter()
        composed = compose(open_recipe(recipe, [*source(), *overrides]))
        self.recipe = recipe
        self.dtype = composed.drawing.recipe.model.dtype
        self.device = composed.info.device
        ids = composed.text.tokenizer.encode(text(), special=False)
        room = len(ids) - PROMPT_TOKENS
        places = [room * number // PROMPTS for number in range(PROMPTS)]
        prompts = [ids[at : at + PROMPT_TOKENS] for at in places]
        self.answers = continue_greedily(composed.engine, prompts, NEW_TOKENS, logprobs=logprobs)
        cut = stretches(ids, positions)
        self.forced = torch.tensor([token for one in cut for token in one.forced])
        self.logits = read(composed.engine, cut, composed.info.vocab)
        self.seconds = time.perf_counter() - start
        composed.engine.close()


def figures(tested: Subject, reference: Subject, bar: Bar) -> dict[tuple[str, str], float]:
    """Return every figure by its name and unit."""
    found = compare(tested.logits, reference.logits, tested.forced, bar.near_tie)
    compared, different = same_beginnings(tested.answers, reference.answers, bar.near_tie)
    return {
        ("perplexity", "1"): found.perplexity,
        ("perplexity_of_reference", "1"): found.perplexity_of_reference,
        ("argmax_agreement", "share"): found.argmax,
        ("clear_positions", "1"): found.clear,
        ("clear_agreement", "share"): found.argmax_clear,
        ("worst_gap", "nat"): found.worst_gap,
        ("kl_mean", "nat"): found.kl_mean,
        ("kl_max", "nat"): found.kl_max,
        ("logprob_gap_mean", "nat"): found.logprob_gap,
        ("greedy_tokens_compared", "1"): compared,
        ("greedy_answers_different", "1"): different,
    }


def missed(found: dict[str, float], bar: Bar) -> list[str]:
    """Return in words which bars are missed."""
    claims = {
        f"clear_agreement is at least {bar.clear_agreement}": (
            found["clear_agreement"] >= bar.clear_agreement
        ),
        f"kl_mean is at most {bar.kl_mean}": found["kl_mean"] <= bar.kl_mean,
        "greedy_answers_different is 0": found["greedy_answers_different"] == 0,
    }
    return [claim for claim, holds in claims.items() if not holds]


def main() -> int:
    """Compare a recipe with the reference; return 1 if it was asked and a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=RECIPES, default="cpu", help="chooses the recipe")
    parser.add_argument("--recipe", help="what is tested, instead of the device's own")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C", help="in the recipe")
    parser.add_argument("--reference", default=REFERENCE, help="what it is compared with")
    parser.add_argument("--slow-reference", action="store_true", help="with its slow twins")
    parser.add_argument("--positions", type=int, default=5000, help="of the text that are read")
    parser.add_argument("--check", action="store_true", help="fail if a bar is missed")
    arguments = parser.parse_args()
    quicker = () if arguments.slow_reference else QUICKER
    reference = Subject(arguments.reference, quicker, arguments.positions, logprobs=2)
    tested = Subject(
        arguments.recipe or RECIPES[arguments.device], arguments.set, arguments.positions
    )
    print(f"{reference.seconds:.1f} s for the reference, {tested.seconds:.1f} s for the other")
    bar = BARS[tested.dtype]
    run, found = new_run("quality"), figures(tested, reference, bar)
    write(
        [
            Figure(
                run_id=run,
                bench="quality",
                model="smollm2-135m",
                workload=f"text-{arguments.positions}",
                recipe=" ".join([tested.recipe, *arguments.set]),
                engine="camshaft",
                device=device() if arguments.device == "cpu" else tested.device,
                metric=metric,
                unit=unit,
                repeats=[value],
            )
            for (metric, unit), value in found.items()
        ],
        "quality",
    )
    misses = missed({metric: value for (metric, _), value in found.items()}, bar)
    print(f"bar of {tested.dtype}: " + ("met" if not misses else f"missed: {'; '.join(misses)}"))
    return int(arguments.check and bool(misses))


if __name__ == "__main__":
    sys.exit(main())
