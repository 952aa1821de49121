"""Eight conversations of two turns at once on the real model, with pages for a third of them."""

from __future__ import annotations

import functools

import pytest

from camshaft import Registry, open_recipe
from camshaft.compose import Composed, compose
from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import collect, make_request

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]  # seconds each where nothing else runs

MANAGERS = sorted(one.name for one in Registry.discover().components("cache"))
OF_MANAGER: dict[str, tuple[str, ...]] = {
    "token_table": ("cache.page_tokens=1", "cache.expected_share=0.2"),
    "tiered": ("cache.load=always", "cache.threads=0"),
}
"""What a manager insists on, what makes one that looks ahead take too many requests, and one with
tiers go the same way each time."""

CACHES: dict[str, tuple[str, ...]] = {
    **{one: (f"cache.use={one}", *OF_MANAGER.get(one, ())) for one in MANAGERS},
    "tiered over radix": ("cache.use=tiered", "cache.over=radix", *OF_MANAGER["tiered"]),
    "tiered over token_table": (
        "cache.use=tiered", "cache.over.use=token_table", "cache.over.expected_share=0.2",
        "cache.page_tokens=1", *OF_MANAGER["tiered"],
    ),
    "modular over tiered": (
        "cache.use=modular", "cache.over.use=tiered", "cache.over.load=always",
        "cache.over.threads=0",
    ),
}  # fmt: skip

SYSTEM = "You answer in one short sentence, plainly, and you say so when you do not know."
TURNS = (
    ("What is the capital of France?", "And of Spain?"),
    ("Name a fruit.", "Name another one."),
    ("How many legs has a spider?", "And an ant?"),
    ("What is 7 times 6?", "Now add eight to it."),
    ("Which planet is the largest?", "Which one is the smallest?"),
    ("What is ice made of?", "At which temperature does it melt?"),
    ("Who wrote Hamlet?", "When did he live?"),
    ("What do bees make?", "What do they make it from?"),
)
NEW = 12
NEAR_TIE = 1e-3
"""Of logits in float32: no order of sums moves them so far apart."""


def composed(*overrides: str) -> Composed:
    quicker = ("attention=sdpa", "engine.deterministic=false", "hardware.threads=1")
    return compose(open_recipe("recipes/reference.yaml", (*quicker, *overrides)))


class Conversations:
    """Both turns of each on one engine; a second turn comes as soon as the first is answered."""

    def __init__(self, one: Composed, answers: dict[str, RequestOutput] | None = None) -> None:
        """Prepare.

        Args:
            one: The engine.
            answers: Those that second turns go on from; by default the engine's own.
        """
        self._engine, self._text = one.engine, one.text
        self.results: dict[str, RequestOutput] = {}
        self._answers = self.results if answers is None else answers

    def run(self) -> dict[str, RequestOutput]:
        """Return all answers: `0a` and `0b` are those of the first conversation."""
        for number in range(len(TURNS)):
            self._engine.submit(self._request(f"{number}a", self._first(number)))
        while self._engine.has_work:
            outputs = self._engine.step()
            collect(outputs, self.results)
            for output in outputs:
                if output.finish is not None and output.id.endswith("a"):
                    number = int(output.id[:-1])
                    self._engine.submit(self._request(f"{number}b", self._second(number)))
        return self.results

    def _request(self, name: str, prompt: list[int]) -> Request:
        return make_request(name, prompt, NEW, ignore_eos=True, logprobs=2)

    def _first(self, number: int) -> list[int]:
        said = (("system", SYSTEM), ("user", TURNS[number][0]))
        return list(self._text.template.render([{"role": a, "content": b} for a, b in said]))

    def _second(self, number: int) -> list[int]:
        more = self._text.tokenizer.encode(f"\n{TURNS[number][1]}\n", special=True)
        return [*self._first(number), *self._answers[f"{number}a"].token_ids, *more]

    def need(self, page_tokens: int) -> int:
        """Return the pages that all conversations fill at their ends."""
        ends = [len(self._second(number)) + NEW for number in range(len(TURNS))]
        return sum(-(-one // page_tokens) for one in ends)


@functools.cache
def without_a_cache() -> tuple[dict[str, RequestOutput], int]:
    """Return what all must answer, and the bytes of all tokens at the end."""
    one = composed("cache.prefix=false", "cache.memory=64MiB")
    talk = Conversations(one)
    results = talk.run()
    return results, talk.need(one.info.page_tokens) * sum(one.info.page_bytes)


def certain(answer: RequestOutput) -> list[int]:
    """Return the ids before the first whose logit another one comes near."""
    for place, one in enumerate(answer.logprobs):
        if one.top_logprobs[0] - one.top_logprobs[1] < NEAR_TIE:
            return answer.token_ids[:place]
    return answer.token_ids


def all_is_back(engine: Engine) -> bool:
    return engine.parts.cache.check_integrity() == [] and all(
        (one.in_use, one.pinned, one.free + one.evictable) == (0, 0, one.total)
        for one in engine.usage()
    )


def test_near_ties_hide_little() -> None:
    wanted, _ = without_a_cache()
    assert sum(len(certain(one)) for one in wanted.values()) > 180  # of 192


@pytest.mark.parametrize("cache", CACHES)
def test_a_pool_at_a_third_of_the_need_changes_no_token(cache: str) -> None:
    wanted, need = without_a_cache()
    one = composed(f"cache.memory={need * 3 // 10}", *CACHES[cache])
    results = Conversations(one, wanted).run()
    for name, answer in wanted.items():
        sure = certain(answer)
        assert results[name].token_ids[: len(sure)] == sure, name
    stats = one.engine.stats
    assert stats.cached_tokens > 0
    assert stats.evictions["space"] > 0
    assert stats.preemptions["no_space"] > 0
    if one.engine.parts.cache.has_tiers:
        assert one.engine.cache_counters()["hit_tokens_memory"] > 0
    assert all_is_back(one.engine)
