"""One answer: text, stop strings, ids and logprobs."""

from __future__ import annotations

from typing import Any

from camshaft.generate.choice import ChoiceText
from camshaft.request import RequestOutput, SamplingParams, TokenLogprobs
from camshaft.testing.text import byte_tokenizer

END = 258


def answer(ids: list[int], finish: Any = "length", **params):
    """Push ids one by one; return the text of each delta, the ids and the last delta."""
    choice = ChoiceText(0, byte_tokenizer(), SamplingParams(max_tokens=100, **params))
    texts, kept, last = [], [], None
    for place, token in enumerate(ids):
        ended = finish if place == len(ids) - 1 else None
        stop_id = token if ended == "stop" else None
        output = RequestOutput(id="a", token_ids=[token], finish=ended, stop_id=stop_id)
        delta = choice.push(output)
        if delta is not None:
            texts.append(delta.text)
            kept += delta.token_ids
            last = delta
        if choice.finished:
            break
    assert last is not None
    return texts, kept, last


def test_text_comes_letter_by_letter_and_ends_with_the_reason() -> None:
    texts, kept, last = answer(list(b"abc"))
    assert (texts, bytes(kept), last.finish) == (["a", "b", "c"], b"abc", "length")


def test_prompt_logprobs_come_with_the_first_text_and_say_where_their_tokens_stand() -> None:
    choice = ChoiceText(0, byte_tokenizer(), SamplingParams(max_tokens=9), list("aé!".encode()))
    chunks = [[TokenLogprobs(-1.0, 2, [97], [-0.5]), TokenLogprobs(-2.0, 1, [], [])], []]
    chunks[1].append(TokenLogprobs(-3.0, 1, [], []))
    for chunk in chunks:
        choice.push_prompt(chunk)
        assert choice.push(RequestOutput(id="a", prompt_logprobs=chunk)) is None
    delta = choice.push(RequestOutput(id="a", token_ids=[98]))
    assert delta is not None
    found = delta.prompt_logprobs
    assert [one.chosen.logprob for one in found] == [-1.0, -2.0, -3.0]
    assert [one.chosen.data for one in found] == [b"\xc3", b"\xa9", b"!"]
    assert [one.offset for one in found] == [1, 1, 2]
    assert [one.text for one in found[0].top] == ["a"]
    later = choice.push(RequestOutput(id="a", token_ids=[99]))
    assert later is not None
    assert later.prompt_logprobs == []


def test_STR_02_a_character_comes_whole_and_its_ids_with_it() -> None:
    texts, kept, _ = answer(list("日😀".encode()))
    assert texts == ["日", "😀"]
    assert bytes(kept) == "日😀".encode()


def test_bytes_that_never_become_a_character_are_let_go_at_the_end() -> None:
    texts, kept, last = answer([*b"a", 0xF0, 0x9F])
    assert ("".join(texts), len(kept), last.text) == ("a\ufffd", 3, "\ufffd")


def test_the_end_id_is_among_the_ids_and_not_in_the_text() -> None:
    texts, kept, last = answer([*b"ab", END], finish="stop")
    assert ("".join(texts), kept, last.stop_reason) == ("ab", [*b"ab", END], END)


def test_a_stop_id_that_is_text_is_shown_only_on_request() -> None:
    hidden, _, _ = answer(list(b"ab."), finish="stop", stop_token_ids=(ord("."),))
    shown, _, _ = answer(list(b"ab."), finish="stop", stop_token_ids=(46,), include_stop=True)
    assert ("".join(hidden), "".join(shown)) == ("ab", "ab.")


def test_STR_03_no_character_of_a_stop_string_leaks() -> None:
    texts, kept, last = answer(list(b"one two three"), stop=("two t",))
    assert "".join(texts) == "one "
    assert bytes(kept) == b"one two t"
    assert (last.finish, last.stop_reason) == ("stop", "two t")


def test_STR_03_with_the_stop_string_included_it_ends_the_text() -> None:
    texts, _, _ = answer(list(b"one two three"), stop=("two t",), include_stop=True)
    assert "".join(texts) == "one two t"


def test_STR_03_the_stop_string_that_ends_first_wins() -> None:
    texts, _, last = answer(list(b"abcdef"), stop=("cdef", "bcd", "bc", "x"))
    assert ("".join(texts), last.stop_reason) == ("a", "bc")


def test_STR_04_what_was_held_back_is_not_lost() -> None:
    texts, _, last = answer(list(b"hello wor"), stop=("wordless",))
    assert ("".join(texts), last.finish) == ("hello wor", "length")


def test_a_stop_string_inside_a_batch_of_ids_cuts_them() -> None:
    params = SamplingParams(max_tokens=9, stop=("c",))
    choice = ChoiceText(0, byte_tokenizer(), params)
    delta = choice.push(RequestOutput(id="a", token_ids=list(b"abcdef")))
    assert delta is not None
    assert (delta.text, bytes(delta.token_ids), delta.finish) == ("ab", b"abc", "stop")


def test_logprobs_name_tokens_and_where_their_text_begins() -> None:
    choice = ChoiceText(0, byte_tokenizer(), SamplingParams(max_tokens=9, logprobs=1))
    logprobs = [TokenLogprobs(-1.0, 2, [ord("z")], [-0.5]) for _ in "aé!"] + [
        TokenLogprobs(-1.0, 1, [], [])
    ]
    output = RequestOutput(id="a", token_ids=list("aé!".encode()), logprobs=logprobs)
    delta = choice.push(output)
    assert delta is not None
    assert [one.offset for one in delta.logprobs] == [0, 1, 1, 2]
    assert [one.chosen.text for one in delta.logprobs] == ["a", "\ufffd", "\ufffd", "!"]
    assert delta.logprobs[1].chosen.data == b"\xc3"
    assert (delta.logprobs[0].rank, delta.logprobs[0].top[0].text) == (2, "z")
