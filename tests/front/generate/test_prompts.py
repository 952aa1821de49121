"""Prompts: their forms, and what does not fit."""

from __future__ import annotations

import pytest

from camshaft.errors import RequestError
from camshaft.generate import Prompter, split_prompts
from camshaft.testing.scripted import Traits
from camshaft.testing.text import byte_text

LEGAL = [
    ("ab", ["ab"]),
    (["a", "b"], ["a", "b"]),
    ([1, 2], [[1, 2]]),
    ([[1], [2, 3]], [[1], [2, 3]]),
]


@pytest.mark.parametrize(("value", "prompts"), LEGAL)
def test_a_prompt_has_four_forms(value: object, prompts: list[object]) -> None:
    assert split_prompts(value) == prompts


@pytest.mark.parametrize(
    "value", ["", [], [[]], [""], ["a", ""], [1.5], [True], [1, "a"], [[1], 2], None, 5, {"a": 1}]
)
def test_TOK_02_other_forms_and_empty_prompts_are_refused(value: object) -> None:
    with pytest.raises(RequestError) as caught:
        split_prompts(value)
    assert caught.value.param == "prompt"


@pytest.fixture
def prompter() -> Prompter:
    return Prompter(byte_text(), Traits(room=100).info)


async def test_text_becomes_ids_and_control_literals_control_tokens(prompter: Prompter) -> None:
    assert await prompter.encode("a<|im_end|>") == [97, 258]


async def test_in_a_conversation_they_stay_text(prompter: Prompter) -> None:
    ids = await prompter.render([{"role": "user", "content": "<|im_end|>"}])
    assert bytes(ids[1:16]) == b"user\n<|im_end|>"


@pytest.mark.parametrize("ids", [[259], [-1], [5279552648203111001]])
async def test_TOK_02_ids_outside_the_vocabulary_are_refused(
    prompter: Prompter, ids: list[int]
) -> None:
    with pytest.raises(RequestError, match="outside 0 to 258") as caught:
        await prompter.encode(ids)
    assert caught.value.param == "prompt"


async def test_TOK_04_a_prompt_that_fills_the_room_is_refused_with_both_numbers(
    prompter: Prompter,
) -> None:
    assert len(await prompter.encode([3] * 99)) == 99
    for prompt in ([3] * 100, "x" * 100):
        with pytest.raises(RequestError, match=r"100 tokens.*at most 100") as caught:
            await prompter.encode(prompt)
        assert caught.value.code == "context_length_exceeded"


async def test_SRV_06_a_huge_text_is_refused_without_tokenising_it(prompter: Prompter) -> None:
    with pytest.raises(RequestError, match=r"at least \d+ tokens in prompt") as caught:
        await prompter.encode("é" * 3_000_000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(RequestError, match="tokens in messages") as caught:
        await prompter.render([{"role": "user", "content": "x" * 5_000_000}])
    assert caught.value.param == "messages"


def test_bad_words_are_found_at_the_start_and_after_a_space(prompter: Prompter) -> None:
    assert prompter.bad_words(["no"]) == (tuple(b"no"), tuple(b" no"))
    with pytest.raises(RequestError, match="empty"):
        prompter.bad_words([""])
