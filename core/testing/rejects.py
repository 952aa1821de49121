"""Run a contract class in this process, to assert that it rejects what it should.

A contract that accepts everything is worth nothing. Each is therefore tested on components that
break one promise:

    class Forgetful(KVStoreContract):
        def make(self, page_bytes, pages): return StoreThatForgets(page_bytes)

    assert failures(Forgetful) == ["test_what_was_put_comes_back"]
"""

from __future__ import annotations

import inspect
import itertools
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from _pytest.mark.structures import Mark, ParameterSet


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one case of a test method did.

    Attributes:
        test: Name of the method.
        case: Its parameters, as pytest shows them; empty without any.
        error: What it raised, or None when it passed or was skipped.
        skipped: The reason, or an empty string when it ran.
    """

    test: str
    case: str = ""
    error: BaseException | None = None
    skipped: str = ""


def failures(
    contract: type, *, only: Collection[str] = (), slow: bool = False, first: bool = False
) -> list[str]:
    """Return the names of the test methods that fail, each once, in the order of definition.

    Args:
        contract: A subclass of a contract class; a fresh instance runs each case.
        only: Run these methods alone; empty runs all.
        slow: Also run methods that are marked `slow`.
        first: Stop at the first failure, where any will do.

    Raises:
        ValueError: `only` names a method that there is none of, or every case was skipped.
    """
    failed: dict[str, None] = {}
    ran = False
    for outcome in outcomes(contract, only=only, slow=slow):
        ran = ran or not outcome.skipped
        if outcome.error is not None:
            failed[outcome.test] = None
            if first:
                break
    if not ran:
        raise ValueError(f"{contract.__name__}: no test ran, so nothing is known")
    return list(failed)


def outcomes(
    contract: type, *, only: Collection[str] = (), slow: bool = False
) -> Iterator[Outcome]:
    """Run test methods, expanding `pytest.mark.parametrize`, and yield what each case did.

    `setup_method` and `teardown_method` are called; of pytest's fixtures there is `tmp_path`.

    Raises:
        ValueError: `only` names a method that there is none of.
        TypeError: A method asks for another fixture.
    """
    names = contract_methods(contract)
    unknown = sorted(set(only) - set(names))
    if unknown:
        raise ValueError(f"{contract.__name__} has no {', '.join(unknown)}")
    for name in names:
        if only and name not in only:
            continue
        function = inspect.getattr_static(contract, name)
        marks = list(getattr(function, "pytestmark", []))
        if any(mark.name == "slow" for mark in marks) and not slow:
            continue
        for case, arguments in _cases(marks):
            yield _run(contract, name, case, arguments)


def contract_methods(contract: type) -> list[str]:
    """Return the names of all test methods, those of base classes first, as pytest orders them."""
    names: dict[str, None] = {}
    for owner in reversed(contract.__mro__):
        for name, value in vars(owner).items():
            if name.startswith("test") and callable(value):
                names[name] = None
    return list(names)


def _cases(marks: list[Mark]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (what pytest would show, arguments) for every combination of `parametrize` marks."""
    tables = [_table(mark) for mark in marks if mark.name == "parametrize"]
    for rows in itertools.product(*tables):
        arguments: dict[str, Any] = {}
        for _, values in rows:
            arguments |= values
        yield "-".join(label for label, _ in rows), arguments


def _table(mark: Mark) -> list[tuple[str, dict[str, Any]]]:
    names, values = mark.args
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")]
    ids = mark.kwargs.get("ids")
    rows = []
    for number, value in enumerate(values):
        row, label = _row(value, single=len(names) == 1)
        if label is None and ids is not None:
            label = ids(row[0]) if callable(ids) else ids[number]
        shown = label if label is not None else "-".join(str(one) for one in row)
        rows.append((str(shown), dict(zip(names, row, strict=True))))
    return rows


def _row(value: ParameterSet | Any, *, single: bool) -> tuple[tuple[Any, ...], Any]:  # noqa: ANN401
    if hasattr(value, "values") and hasattr(value, "marks"):  # pytest.param(...)
        return tuple(value.values), value.id
    return ((value,) if single else tuple(value)), None


def _run(contract: type, name: str, case: str, arguments: dict[str, Any]) -> Outcome:
    instance = contract()
    method = getattr(instance, name)
    missing = _wanted(method) - set(arguments)
    if missing - {"tmp_path"}:
        raise TypeError(f"{contract.__name__}.{name} asks for {sorted(missing - {'tmp_path'})}")
    with ExitStack() as stack:
        if "tmp_path" in missing:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            arguments = {**arguments, "tmp_path": Path(folder)}
        try:
            _surround(instance, "setup_method", method)
            try:
                method(**arguments)
            finally:
                _surround(instance, "teardown_method", method)
        except pytest.skip.Exception as skip:
            return Outcome(name, case, skipped=str(skip) or "skipped")
        except (Exception, SystemExit, pytest.fail.Exception) as error:  # noqa: BLE001 - the subject
            return Outcome(name, case, error)
    return Outcome(name, case)


def _surround(instance: object, name: str, method: Callable[..., object]) -> None:
    """Call `setup_method` or `teardown_method`, which may take the test method or nothing."""
    function = getattr(instance, name, None)
    if function is not None:
        function(*([method] if inspect.signature(function).parameters else []))


def _wanted(method: Callable[..., object]) -> set[str]:
    """Return the parameters that have no default; hypothesis hides those that it fills."""
    return {
        name
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}
    }
