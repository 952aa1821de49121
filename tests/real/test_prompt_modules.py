"""Prompts out of modules on the real model: equal where that is exact, near where it is not.

A module does not see what stands before it, so all but the first are computed with less context
than in one text. How much that changes is bounded here by what was measured: of three modules cut
from a text, mean divergences of 0.11 and 0.16 nats, where to leave them out costs 0.7 and 1.5.
"""

from __future__ import annotations

import functools

import pytest
import torch

from benchmarks.quality import text
from benchmarks.teacher import Teacher
from camshaft import open_recipe
from camshaft.compose import Composed, compose
from camshaft.request import Request, SamplingParams, TokenSpan
from camshaft.testing.engines import run_to_end

pytestmark = pytest.mark.real

MODULE, FORCED = 64, 20


@functools.cache
def composed() -> Composed:
    overrides = ("cache.use=modular", "cache.memory=64MiB", "hardware.threads=1", "attention=sdpa")
    return compose(
        open_recipe("recipes/reference.yaml", (*overrides, "engine.deterministic=false"))
    )


@functools.cache
def ids() -> list[int]:
    return composed().text.tokenizer.encode(text(), special=False)


def piece(start: int, number: int, length: int = MODULE) -> list[int]:
    return ids()[start + number * MODULE : start + number * MODULE + length]


def read(start: int, *spans: TokenSpan) -> torch.Tensor:
    """Return log-probabilities [FORCED, V] of what stands in the text behind three pieces."""
    engine = composed().engine
    parts = engine.parts.executor.parts  # type: ignore[attr-defined]
    forced = torch.tensor(piece(start, 3, 16 + FORCED)[16:])
    own, parts.sampler = parts.sampler, Teacher(forced, parts.model.facts.vocab, 100)
    params = SamplingParams(max_tokens=FORCED, temperature=0.0, seed=0, ignore_eos=True)
    asked = (*spans, TokenSpan(piece(start, 3, 16)))
    engine.submit(Request(id="read", spans=asked, params=params))
    assert run_to_end(engine)["read"].finish == "length"
    logits: torch.Tensor = parts.sampler.logits.double()
    parts.sampler = own
    return logits.log_softmax(-1)


@functools.cache
def plain(start: int) -> torch.Tensor:
    """The same behind three pieces in one text."""
    return read(start, TokenSpan([token for number in range(3) for token in piece(start, number)]))


def divergence(wanted: torch.Tensor, got: torch.Tensor) -> float:
    return float((wanted.exp() * (wanted - got)).sum(-1).mean())


def test_one_module_at_the_beginning_is_exact() -> None:
    wanted = plain(0)
    composed().engine.reset_cache()
    whole = TokenSpan([token for number in range(3) for token in piece(0, number)], 0)
    assert torch.equal(read(0, whole), wanted)


@pytest.mark.parametrize("start", [0, 1000])
def test_several_modules_are_near(start: int) -> None:
    modules = [TokenSpan(piece(start, number), MODULE * number) for number in range(3)]
    modular = divergence(plain(start), read(start, *modules))
    without = divergence(plain(start), read(start))
    assert 0.01 < modular < 0.3
    assert modular < without / 2


def test_a_gap_between_positions_does_little() -> None:
    first, last = piece(1000, 0), piece(1000, 2)
    text_of_two = read(1000, TokenSpan([*first, *last]))
    modules = TokenSpan(first, 0), TokenSpan(last, 2 * MODULE)
    assert 0.001 < divergence(text_of_two, read(1000, *modules)) < 0.15
