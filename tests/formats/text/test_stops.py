"""Stop strings: nothing leaks, nothing is lost, and splitting changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.errors import RequestError
from camshaft.text import StopStrings


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopStrings(stops, include)
    sent = [matcher.push(piece)[0] for piece in pieces]
    return ([*sent, matcher.flush()] if matcher.hit is None else sent), matcher.hit


def reference(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """Grow the text by one character at a time; the first stop string that ends it cuts it."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=6),
    st.booleans(),
)
def test_any_split_gives_what_a_search_of_the_whole_text_gives(
    stops: list[str], pieces: list[str], include: bool
) -> None:
    sent, hit = run(stops, pieces, include)
    assert ("".join(sent), hit) == reference(stops, "".join(pieces), include)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=6),
)
def test_STR_03_what_was_sent_never_exceeds_the_final_answer(
    stops: list[str], pieces: list[str]
) -> None:
    final, _ = reference(stops, "".join(pieces), include=False)
    matcher, sent = StopStrings(stops), ""
    for piece in pieces:
        sent += matcher.push(piece)[0]
        assert final.startswith(sent)


def test_STR_03_a_stop_over_several_pieces_leaks_nothing() -> None:
    assert run(["STOP"], ["abS", "T", "O", "Pcd"]) == (["ab", "", "", ""], "STOP")
    assert run(["STOP"], ["abS", "T", "O", "Pcd"], True) == (["abS", "T", "O", "P"], "STOP")


def test_STR_03_of_several_stops_the_earliest_end_wins_and_then_the_longest() -> None:
    assert run(["bcd", "bc"], ["abcd"]) == (["a"], "bc")
    assert run(["c", "abc"], ["xabc"]) == (["x"], "abc")


def test_STR_04_characters_held_back_are_not_lost() -> None:
    assert run(["☃ZZZZ"], ["end ☃Z", "Z"]) == (["end ", "", "☃ZZ"], None)
    assert run(["aab"], ["aaa", "ac"]) == (["a", "aaac", ""], None)


def test_nothing_is_held_back_without_a_possible_start_or_when_the_stop_is_included() -> None:
    assert run(["xyz"], ["abc", "x?"]) == (["abc", "x?", ""], None)
    assert run(["xyz"], ["abx"], include=True) == (["abx", ""], None)
    assert run([], ["abc"]) == (["abc", ""], None)


def test_after_a_hit_nothing_more_is_sent() -> None:
    matcher = StopStrings(["b"])
    assert matcher.push("abc") == ("a", "b")
    assert matcher.push("more") == ("", "b")
    assert matcher.flush() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="must not be empty") as caught:
        StopStrings(["a", ""])
    assert (caught.value.param, caught.value.status) == ("stop", 400)
