"""Many requests on few pages: random arrivals, aborts and preemptions, and the books at the end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput
from camshaft.testing.engines import collect, make_request

CHOICES: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.0, "top_k": 20, "frequency_penalty": 0.2, "repetition_penalty": 1.1},
    {"logprobs": 2},
)
"""Greedy and seeded, with and without what changes or reports logits."""

LONGEST_PROMPT, MOST_NEW = 90, 40


@dataclass(slots=True)
class Outcome:
    """What became of the requests.

    Attributes:
        results: Joined outputs by id.
        aborted: Ids that were aborted while they were in the engine.
    """

    results: dict[str, RequestOutput] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)


def requests(count: int, seed: int) -> list[Request]:
    """Return random requests; a third of them begin alike."""
    chance = random.Random(seed)
    common = [chance.randrange(256) for _ in range(40)]
    made = []
    for number in range(count):
        own = [chance.randrange(256) for _ in range(chance.randint(1, LONGEST_PROMPT - 40))]
        made.append(
            make_request(
                f"r{number}",
                own if number % 3 else common + own,
                chance.randint(2, MOST_NEW),
                ignore_eos=True,
                seed=number,
                **CHOICES[number % len(CHOICES)],
            )
        )
    return made


def of_tenants(shortest: int, longest: int, *, stops: bool = False) -> list[Request]:
    """Return nine greedy and seeded requests of three tenants; half of them begin alike.

    Args:
        shortest: Answer.
        longest: Answer.
        stops: Whether a third has a stop string, which never comes.
    """
    chance = random.Random(8)
    common = [chance.randrange(256) for _ in range(12)]
    made = []
    for number in range(9):
        own = [chance.randrange(256) for _ in range(chance.choice([1, 5, 21]))]
        one = make_request(
            f"r{number}",
            common + own if number % 2 else own,
            chance.randint(shortest, longest),
            ignore_eos=True,
            seed=number,
            tenant=f"t{number % 3}",
            stop=("never",) if stops and number % 3 == 2 else (),
            **CHOICES[number % len(CHOICES)],
        )
        made.append(one)
    return made


def staggered(
    engine: Engine, work: list[Request], chance: random.Random
) -> dict[str, RequestOutput]:
    """Let requests come one by one among noise that is aborted; return the answers to `work`."""
    results: dict[str, RequestOutput] = {}
    for number, request in enumerate(work):
        engine.submit(request)
        engine.submit(make_request(f"noise{number}", range(chance.randint(1, 40)), 30))
        for _ in range(chance.randint(0, 4)):
            collect(engine.step(), results)
        engine.abort(f"noise{chance.randint(0, number)}")
    while engine.has_work:
        collect(engine.step(), results)
    return {one.id: results[one.id] for one in work}


def scarce_pages(work: list[Request], running: int, page_tokens: int, share: float) -> int:
    """Return a share of the pages that `running` average requests fill at their ends."""
    pages = [-(-(len(one.prompt_ids) + one.params.max_tokens) // page_tokens) for one in work]
    return int(running * sum(pages) / len(pages) * share)


def press(engine: Engine, work: list[Request], seed: int) -> Outcome:
    """Submit requests a few at a time, abort about one in eight, and step to the end."""
    chance, outcome = random.Random(seed), Outcome()
    left = list(reversed(work))
    for _ in range(100 * len(work)):
        for _ in range(min(len(left), chance.randint(0, 6))):
            engine.submit(left.pop())
        ours = [name for name in engine.states if not name.startswith("module ")]
        if ours and chance.random() < 0.05:
            name = chance.choice(ours)
            engine.abort(name)
            outcome.aborted.add(name)
        collect(engine.step(), outcome.results)
        if not left and not engine.has_work:
            return outcome
    raise AssertionError(f"{len(engine.states)} requests do not end")


def check(engine: Engine, work: list[Request], outcome: Outcome) -> None:
    """Every request has ended as it should, and everything it held is back."""
    assert set(outcome.results) == {one.id for one in work}
    for one in work:
        result = outcome.results[one.id]
        if one.id in outcome.aborted:
            assert result.finish == "abort", one.id
        else:
            assert (result.finish, len(result.token_ids)) == ("length", one.params.max_tokens)
    for usage in engine.usage():
        assert (usage.in_use, usage.pinned) == (0, 0)
        assert usage.free + usage.evictable == usage.total
    assert engine.slots.in_use == 0
    assert engine.parts.cache.check_integrity() == []
    assert engine.stats.preemptions["no_space"] > len(work) // 20
    assert len(outcome.aborted) > len(work) // 50
