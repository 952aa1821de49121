"""The Python API, on a scripted engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from camshaft.client import LocalClient
from camshaft.errors import RequestError
from camshaft.generate.llm import LLM
from camshaft.request import CacheScope, Request, SamplingParams
from camshaft.testing.scripted import ScriptedEngine, Traits
from camshaft.testing.text import byte_text

GREEDY = SamplingParams(max_tokens=3, temperature=0)


def script(request: Request) -> Iterator[int]:
    yield from (one for one in reversed(request.prompt_ids) if one < 256)


@pytest.fixture
def llm() -> Iterator[LLM]:
    engine = ScriptedEngine(script, Traits(room=100))
    with LLM.on(LocalClient(lambda: (engine, engine.traits.info)), byte_text()) as llm:
        yield llm


def test_one_text_or_several_are_continued(llm: LLM) -> None:
    assert [one.text for one in llm.generate("abc", GREEDY)] == ["cba"]
    assert [one.text for one in llm.generate(["abc", "xyz"], GREEDY)] == ["cba", "zyx"]
    assert [one.token_ids for one in llm.generate([[1, 2, 3], [4, 5, 6]], GREEDY)] == [
        [3, 2, 1],
        [6, 5, 4],
    ]


def test_answers_carry_choices_and_usage_of_their_prompt(llm: LLM) -> None:
    _, second = llm.generate(["abc", "wxyz"], GREEDY, n=2)
    assert [one.text for one in second.choices] == ["zyx", "zyx"]
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (4, 6)
    assert bytes(second.prompt_ids) == b"wxyz"


def test_a_conversation_fills_the_context_by_default(llm: LLM) -> None:
    answer = llm.chat([{"role": "user", "content": "Hi"}])
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == 100
    assert answer.choices[0].finish == "length"


def test_what_does_not_fit_is_refused_by_name(llm: LLM) -> None:
    with pytest.raises(RequestError, match="the prompt is empty|a prompt is empty"):
        llm.generate("")
    with pytest.raises(RequestError, match="temperature must be at least 0"):
        llm.generate("a", SamplingParams(max_tokens=1, temperature=-1))


def test_pages_are_shared_under_the_same_salt_and_scope(llm: LLM) -> None:
    def cached(**where: Any) -> int:
        [answer] = llm.generate([list(range(40))], GREEDY, **where)
        return answer.usage.cached_tokens

    news = CacheScope("news", 1)
    hits = [cached(), cached(), cached(salt="a"), cached(scope=news), cached(scope=news)]
    assert hits == [0, 32, 0, 0, 32]
    with pytest.raises(RequestError, match=r"cache\.ttl_s must be above 0, not -1"):
        cached(scope=CacheScope("news", 1, -1.0))
    with pytest.raises(RequestError, match="a version and a time to live belong to a namespace"):
        cached(scope=CacheScope(version=2))


async def test_deltas_come_as_an_asynchronous_iteration(llm: LLM) -> None:
    texts = [delta.text async for delta in llm.agenerate("abc", GREEDY)]
    assert texts == ["c", "b", "a"]
    chat = [delta.text async for delta in llm.achat([{"role": "user", "content": "x"}], GREEDY)]
    assert len(chat) == 3


def test_vectors_are_made_of_texts_and_ids(llm: LLM) -> None:
    assert llm.embed(["abc", "xy"], normalize=False) == [[3, 97, 99], [2, 120, 121]]
    [vector] = llm.embed([3, 4])
    assert vector == pytest.approx([2 / 29**0.5, 3 / 29**0.5, 4 / 29**0.5])
    with pytest.raises(RequestError, match="texts must be a text"):
        llm.embed([])
