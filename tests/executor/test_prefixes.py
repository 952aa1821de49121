from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from camshaft.contracts.attention import SharedPrefixes
from camshaft.executor.prefixes import LEAST_REQUESTS, PATIENCE, SharedPages, best_runs
from camshaft.step import Admissions, Ragged, Step, int32

PAGE = 128  # so that two pages are the least that is shared


def pages_of(**changes: int) -> SharedPages:
    sizes = {"group": 0, "slots": 20, "columns": 8, "page_tokens": PAGE, "pays_from": 1}
    return SharedPages(**(sizes | changes))


def admit(slot: int, pages: list[int], first: int = 0, group: int = 0) -> Step:
    """A step that admits a slot and writes its table."""
    return Step(
        admissions=Admissions(slots=int32([slot])),
        write_group=int32([group]),
        write_slot=int32([slot]),
        write_first=int32([first]),
        write_pages=Ragged.of([pages]),
    )


def write(slot: int, first: int, pages: list[int]) -> Step:
    step = admit(slot, pages, first)
    step.admissions = Admissions()
    return step


def admit_all(shared: SharedPages, tables: list[list[int]]) -> None:
    for slot, table in enumerate(tables):
        shared.follow(admit(slot, table))


def ask(shared: SharedPages, slots: list[int], tokens: int = 8 * PAGE) -> SharedPrefixes | None:
    return shared.among(int32(slots), int32([tokens] * len(slots)))


def test_requests_with_equal_first_pages_are_a_group() -> None:
    shared = pages_of()
    admit_all(shared, [[1, 2, 3, 10 + n] for n in range(5)] + [[90, 91, 92]])
    found = ask(shared, [5, 0, 1, 2, 3, 4])
    assert found is not None
    assert found.group.tolist() == [-1, 0, 0, 0, 0, 0]
    assert found.tokens.tolist() == [3 * PAGE]


def test_only_pages_that_every_member_has_filled_count() -> None:
    shared = pages_of()
    admit_all(shared, [[1, 2, 3, 4]] * 4)
    context = int32([4 * PAGE, 4 * PAGE, 3 * PAGE - 1, 4 * PAGE])
    found = shared.among(int32([0, 1, 2, 3]), context)
    assert found is not None
    assert found.tokens.tolist() == [2 * PAGE]


@pytest.mark.parametrize(
    ("tables", "pays_from"),
    [
        ([[1, 2, 3]] * (LEAST_REQUESTS - 1), 1),
        ([[1, 10 + n, 3] for n in range(6)], 1),
        ([[1, 2, 3]] * 5, 4 * 3 * PAGE + 1),
    ],
    ids=["too few requests", "too short", "too little to spare"],
)
def test_what_does_not_pay_is_not_shared(tables: list[list[int]], pays_from: int) -> None:
    shared = pages_of(pays_from=pays_from)
    admit_all(shared, tables)
    assert ask(shared, list(range(len(tables))), 3 * PAGE) is None


def test_tables_without_pages_are_not_equal_prefixes() -> None:
    shared = pages_of()
    admit_all(shared, [[] for _ in range(6)])
    assert ask(shared, list(range(6)), 0) is None


@pytest.mark.parametrize(
    ("common", "family", "tokens"),
    [(3, 3, [6 * PAGE, 6 * PAGE]), (7, 1, [7 * PAGE])],
    ids=["families", "all"],
)
def test_of_nested_prefixes_those_that_spare_most_are_taken(
    common: int, family: int, tokens: list[int]
) -> None:
    """Eight requests share some pages, and four of them, or the other four, some more."""
    shared = pages_of()
    for slot in range(8):
        more = [100 + 50 * (slot % 2) + page for page in range(family)]
        shared.follow(admit(slot, [*range(1, common + 1), *more]))
    found = ask(shared, list(range(8)), 8 * PAGE)
    assert found is not None
    assert sorted(found.tokens.tolist()) == tokens


def test_a_steady_step_gets_the_same_answer_without_a_search() -> None:
    shared = pages_of()
    admit_all(shared, [[1, 2]] * 4)
    first = ask(shared, [0, 1, 2, 3])
    shared.follow(write(2, 2, [77]))  # its next page: behind what it shares
    assert first is not None
    assert ask(shared, [0, 1, 2, 3]) is first
    assert shared.searches == 1


def test_who_leaves_takes_nothing_from_the_others() -> None:
    shared = pages_of()
    admit_all(shared, [[1, 2]] * 6)
    ask(shared, list(range(6)))
    found = ask(shared, [5, 0, 3, 1])
    assert found is not None
    assert found.group.tolist() == [0, 0, 0, 0]
    assert ask(shared, [5, 0, 3]) is None
    assert shared.searches == 1


def test_a_slot_that_changes_hands_is_out_of_its_group_at_once() -> None:
    shared = pages_of()
    admit_all(shared, [[1, 2]] * 5)
    ask(shared, list(range(5)))
    shared.follow(admit(3, [8, 9]))
    found = ask(shared, list(range(5)))
    assert found is not None
    assert found.group.tolist() == [0, 0, 0, -1, 0]


def test_a_page_that_is_replaced_ends_its_sharing() -> None:
    shared = pages_of()
    admit_all(shared, [[1, 2]] * 5)
    ask(shared, list(range(5)))
    shared.follow(write(0, 1, [66]))
    found = ask(shared, list(range(5)))
    assert found is not None
    assert found.group.tolist() == [-1, 0, 0, 0, 0]


def test_tables_of_other_kv_groups_do_not_count() -> None:
    shared = pages_of()
    for slot in range(5):
        shared.follow(admit(slot, [1, 2], group=1))
    assert ask(shared, list(range(5))) is None


def test_few_newcomers_are_searched_for_after_a_while() -> None:
    shared = pages_of(slots=40)
    admit_all(shared, [[1, 2]] * 34)
    slots = list(range(34))
    ask(shared, slots[:33])
    for _ in range(PATIENCE - 1):
        found = ask(shared, slots)
        assert found is not None
        assert found.group[-1] == -1
    found = ask(shared, slots)
    assert found is not None
    assert found.group[-1] == 0
    assert shared.searches == 2


def spared_by(common: list[int], runs: list[tuple[int, int]]) -> int:
    return sum(min(common[a : b - 1]) * (b - a - 1) for a, b in runs)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_choice_of_nested_runs_spares_more(seed: int) -> None:
    """Runs of a tree: rows that share a page stand together, so its runs do not straddle."""
    chance = np.random.default_rng(seed)
    common = chance.integers(0, 5, 11).tolist()
    runs = best_runs(np.array(common))
    for run in runs:
        assert run.pages == min(common[run.first : run.last - 1])
        assert run.last - run.first >= LEAST_REQUESTS
    ends = [(run.first, run.last) for run in runs]
    assert all(a[1] <= b[0] for a, b in pairwise(ends))
    assert spared_by(common, ends) == best_within_tree(common)


def best_within_tree(common: list[int]) -> int:
    """The same by recursion: a run of the tree, or the best within its parts."""
    if len(common) + 1 < LEAST_REQUESTS:
        return 0
    least = min(common)
    parts, start = [], 0
    for place, pages in enumerate([*common, least]):
        if pages == least:
            parts.append(common[start:place])
            start = place + 1
    return max(least * len(common), sum(best_within_tree(part) for part in parts))
