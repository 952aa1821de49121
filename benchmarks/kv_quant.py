"""What storage forms of keys and values cost in quality, and what they save.

The real model in float32 is forced through a fixed text once with full pages and once with each
form: nothing else differs. Prompts, cached prefixes and decoded tokens all read the pages.

Run: python -m benchmarks.kv_quant

`CAMSHAFT_MODEL` names the GGUF file where the package that holds it is not installed.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from camshaft import open_recipe
from camshaft.compose import compose, draw
from camshaft.compose.memory import group_page_bytes
from camshaft.registry import Registry

from .agreement import BARS, compare
from .quality import QUICKER, REFERENCE, source, text
from .results import Figure, device, new_run, write
from .teacher import read, stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

SERVED = "recipes/quickstart.yaml"
"""Its activations are bfloat16: what a form saves is counted against those."""

Found = dict[tuple[str, str], float]
"""Figures by name and unit."""


class Reading(NamedTuple):
    """What the model made of the text.

    Attributes:
        forced: int64 [P], the tokens of all positions.
        logits: float32 [P, V] before each of them.
    """

    forced: torch.Tensor
    logits: torch.Tensor


def read_with(form: str, positions: int) -> Reading:
    """Read the text with pages of a form."""
    start = time.perf_counter()
    composed = compose(open_recipe(REFERENCE, [*source(), *QUICKER, f"quant.kv={form}"]))
    cut = stretches(composed.text.tokenizer.encode(text(), special=False), positions)
    logits = read(composed.engine, cut, composed.info.vocab)
    composed.engine.close()
    print(f"{form}: {time.perf_counter() - start:.1f} s")
    return Reading(torch.tensor([token for one in cut for token in one.forced]), logits)


def capacity(form: str) -> Found:
    """Return the bytes of a token's keys and values over all layers, and how many tokens fit."""
    drawing = draw(open_recipe(SERVED, [*source(), f"quant.kv={form}"]))
    cache, page = drawing.recipe.cache, sum(group_page_bytes(drawing))
    assert isinstance(cache.memory, int), "the recipe states its memory"
    fit = (cache.memory // page - 1) * cache.page_tokens  # one page is the null page
    return {("pool_tokens", "1"): fit, ("bytes_per_token", "B"): page / cache.page_tokens}


def loss(tested: Reading, full: Reading) -> Found:
    """Return what a form costs against full pages."""
    found = compare(tested.logits, full.logits, tested.forced, BARS["bfloat16"].near_tie)
    return {
        ("perplexity", "1"): found.perplexity,
        ("perplexity_of_reference", "1"): found.perplexity_of_reference,
        ("argmax_agreement", "share"): found.argmax,
        ("kl_mean", "nat"): found.kl_mean,
        ("kl_max", "nat"): found.kl_max,
    }


def forms(wanted: Sequence[str]) -> list[str]:
    """Return the forms to measure: those that are wanted, or all that are installed."""
    names = [one.name for one in Registry.discover().components("kv_quant")]
    return [name for name in names if name != "none" and (not wanted or name in wanted)]


def main() -> None:
    """Measure every form and append the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("forms", nargs="*", help="instead of all that are installed")
    parser.add_argument("--positions", type=int, default=2000, help="of the text that are read")
    arguments = parser.parse_args()
    full = read_with("none", arguments.positions)
    run = new_run("kv_quant")
    for form in ["none", *forms(arguments.forms)]:
        found = capacity(form)
        if form != "none":
            found |= loss(read_with(form, arguments.positions), full)
        write(
            [
                Figure(
                    run_id=run,
                    bench="kv_quant",
                    model="smollm2-135m",
                    workload=f"text-{arguments.positions}",
                    recipe=" ".join([REFERENCE, *QUICKER, f"quant.kv={form}"]),
                    engine="camshaft",
                    device=device(),
                    metric=metric,
                    unit=unit,
                    repeats=[value],
                )
                for (metric, unit), value in found.items()
            ],
            "kv_quant",
        )


if __name__ == "__main__":
    main()
