"""Our own engine as a worker: a recipe, composed in this process."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as `engine` does, before torch is imported

from camshaft import open_recipe
from camshaft.compose import compose, spare_the_collector
from camshaft.plugins.lab.measure import measure
from camshaft.plugins.lab.workloads import Job

from .protocol import Answer, Question, serve


class Camshaft:
    """An engine that is stepped by hand."""

    def __init__(self, recipe: str, overrides: list[str]) -> None:
        self._engine = compose(open_recipe(recipe, overrides)).engine
        spare_the_collector()

    def generate(self, question: Question) -> Answer:
        """See `protocol.Engine`."""
        work = [Job(tuple(prompt), question.outputs) for prompt in question.prompts]
        done = measure(self._engine, work)
        return Answer(
            first_s=max(done.ttft_ms) / 1e3,
            whole_s=done.seconds,
            ids=[list(ids) for ids in done.answers],
        )


def main() -> None:
    """Serve a recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="A.B=C")
    arguments = parser.parse_args()
    serve(Camshaft(arguments.recipe, arguments.set), ("camshaft", "torch"))


if __name__ == "__main__":
    main()
