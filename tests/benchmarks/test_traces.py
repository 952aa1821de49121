"""Traces are fixed by their seed, and say what an unlimited cache would hold."""

from __future__ import annotations

from benchmarks.traces import (
    Tokens,
    Trace,
    Turn,
    multi_turn,
    shared_documents,
    working_set,
)


def test_a_seed_fixes_everything() -> None:
    assert multi_turn(1, 300) == multi_turn(1, 300)
    assert multi_turn(1, 300) != multi_turn(2, 300)
    assert shared_documents(1, 300) == shared_documents(1, 300)


def test_conversations_begin_with_the_system_prompt_and_only_once() -> None:
    trace = multi_turn(1, 300, conversations=3, turns=2, system=50, added=(10, 20))
    first = [one[0].added[:50] for one in trace.conversations]
    assert first[0] == first[1] == first[2]
    assert all(10 <= len(one[1].added) <= 20 for one in trace.conversations)
    assert trace.requests == 6


def test_the_sizes_of_the_full_traces() -> None:
    talk, ask = multi_turn(1, 300), shared_documents(1, 300)
    assert (len(talk.conversations), talk.requests) == (100, 800)
    assert ask.requests == 400
    assert len({one[0].added[:4000] for one in ask.conversations}) == 4


def test_questions_come_one_after_another() -> None:
    due = [one[0].think_s for one in shared_documents(1, 300, questions=20).conversations]
    assert due == sorted(due)
    assert due[0] == 0.0


def test_known_tokens_are_the_longest_common_beginning() -> None:
    tokens = Tokens()
    tokens.add([1, 2, 3, 4])
    tokens.add([1, 2, 9])
    assert len(tokens) == 5
    assert tokens.known([1, 2, 9, 4]) == 3
    assert tokens.known([1, 2, 3]) == 3
    assert tokens.known([2, 3]) == 0


def test_the_working_set_counts_common_tokens_once() -> None:
    common = (11, 12, 13)
    trace = Trace(
        "two",
        (
            (Turn(0, (*common, 14), 2), Turn(1, (15,), 1)),
            (Turn(0, (*common, 16), 2),),
        ),
    )
    assert working_set(trace) == 3 + (1 + 2 + 1 + 1) + (1 + 2)
    assert trace.longest == 8
