from __future__ import annotations

from pathlib import Path

import pytest

from camshaft.testing.rejects import contract_methods, failures, outcomes


class Contract:
    value = 2

    def test_it_is_small(self) -> None:
        assert self.value < 10

    @pytest.mark.parametrize("step", [1, 2])
    @pytest.mark.parametrize(("low", "high"), [(0, 5), pytest.param(0, 50, id="wide")])
    def test_it_is_within(self, low: int, high: int, step: int) -> None:
        assert low <= self.value * step <= high

    def test_it_is_skipped_when_odd(self) -> None:
        if self.value % 2:
            pytest.skip("odd")
        assert self.value != 12

    def test_the_next_is_no_key(self) -> None:
        with pytest.raises(KeyError):
            {4: ""}[self.value + 1]

    @pytest.mark.slow
    def test_it_is_not_seven(self) -> None:
        assert self.value != 7


class Three(Contract):
    value = 3


class Seven(Contract):
    value = 7


class Twelve(Contract):
    value = 12


def test_what_passes_is_not_listed() -> None:
    assert failures(Contract) == []


def test_failures_are_names_of_methods_each_once() -> None:
    assert failures(Twelve) == [
        "test_it_is_small",
        "test_it_is_within",
        "test_it_is_skipped_when_odd",
    ]


def test_what_did_not_raise_has_failed() -> None:
    assert failures(Three) == ["test_it_is_within", "test_the_next_is_no_key"]


def test_every_combination_of_parameters_is_a_case() -> None:
    cases = {one.case: one.error is None for one in outcomes(Three, only=["test_it_is_within"])}
    assert cases == {"0-5-1": True, "0-5-2": False, "wide-1": True, "wide-2": True}


def test_slow_methods_run_only_when_asked_for() -> None:
    assert "test_it_is_not_seven" not in failures(Seven)
    assert failures(Seven, slow=True, only=["test_it_is_not_seven"]) == ["test_it_is_not_seven"]


def test_the_first_failure_is_enough_where_any_will_do() -> None:
    assert failures(Twelve, first=True) == ["test_it_is_small"]


def test_a_run_in_which_everything_was_skipped_is_an_error() -> None:
    with pytest.raises(ValueError, match="no test ran"):
        failures(Seven, only=["test_it_is_skipped_when_odd"])


def test_an_unknown_name_is_an_error_and_not_an_empty_list() -> None:
    with pytest.raises(ValueError, match="has no test_nothing"):
        failures(Contract, only=["test_nothing"])


class WithSetup:
    def setup_method(self) -> None:
        self.seen: list[str] = []

    def test_each_case_has_an_instance_and_a_folder_of_its_own(self, tmp_path: Path) -> None:
        assert not list(tmp_path.iterdir())
        (tmp_path / "file").write_text("")
        self.seen.append("here")
        assert self.seen == ["here"]

    def test_it_exits(self) -> None:
        raise SystemExit(2)

    def teardown_method(self, method: object) -> None:
        self.seen.clear()


def test_setup_folders_and_exits_are_handled() -> None:
    assert failures(WithSetup) == ["test_it_exits"]


class WithFixture:
    def test_it_needs_what_only_pytest_has(self, capsys: object) -> None:
        pass


def test_an_unknown_fixture_is_named() -> None:
    with pytest.raises(TypeError, match="capsys"):
        failures(WithFixture)


def test_inherited_methods_come_first() -> None:
    class More(Contract):
        def test_more(self) -> None:
            pass

    assert contract_methods(More)[0] == "test_it_is_small"
    assert contract_methods(More)[-1] == "test_more"
