"""Streams of text: joined they are the whole, and never a broken character on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.testing.text import byte_tokenizer
from camshaft.text import Detokenizer, TextModel, Tokenizer

BYTEWISE = byte_tokenizer()


def stream(tokenizer: Tokenizer, pieces: list[list[int]], skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special)
    return [*map(detokenizer.push, pieces), detokenizer.flush()]


@given(st.lists(st.lists(st.integers(0, 258), max_size=6)), st.booleans())
def test_joined_pieces_are_the_whole_decoding_of_any_bytes(
    pieces: list[list[int]], skip: bool
) -> None:
    ids = [id for piece in pieces for id in piece]
    whole = BYTEWISE.decode(ids, skip_special=skip)
    assert "".join(stream(BYTEWISE, pieces, skip)) == whole
    assert "".join(stream(BYTEWISE, [[id] for id in ids], skip)) == whole


@given(st.text())
def test_valid_text_never_shows_a_replacement_on_the_way(text: str) -> None:
    pieces = stream(BYTEWISE, [[byte] for byte in text.encode()])
    assert "".join(pieces) == text
    assert sum(piece.count("�") for piece in pieces) == text.count("�")


@pytest.mark.real
def test_STR_01_a_prompt_that_ends_inside_a_character_is_not_sent_again(smollm2: TextModel) -> None:
    # The prompt's ids are [19556, 905, 216, 10813, 230]; the answer's only id adds byte B6.
    assert stream(smollm2.tokenizer, [[131]]) == ["�", ""]
    assert smollm2.tokenizer.decode([131]) == "�"


@pytest.mark.real
def test_STR_02_an_emoji_of_three_tokens_comes_out_whole(smollm2: TextModel) -> None:
    assert stream(smollm2.tokenizer, [[10813], [242], [218]]) == ["", "", "😀", ""]
    text = "日本語😀ไทย"
    pieces = stream(smollm2.tokenizer, [[id] for id in smollm2.tokenizer.encode(text, True)])
    assert "".join(pieces) == text
    assert not any("�" in piece for piece in pieces)


def test_bytes_that_cannot_become_a_character_are_replaced_at_once() -> None:
    assert stream(BYTEWISE, [[0xF0, 0x9F], [0x41], [0xFF]]) == ["", "�A", "�", ""]


def test_an_unfinished_character_is_replaced_at_the_end() -> None:
    assert stream(BYTEWISE, [[0x41, 0xE2, 0x82]]) == ["A", "�"]


def test_control_tokens_and_ids_without_text_add_nothing() -> None:
    assert stream(BYTEWISE, [[0xE2, 258], [0x82, 5000], [0xAC]]) == ["", "", "€", ""]
    assert stream(BYTEWISE, [[65, 258]], skip_special=False) == ["A<|im_end|>", ""]
