from __future__ import annotations

import pytest

from camshaft.contracts.cache import Prefix
from camshaft.plugins.cache import versions
from camshaft.plugins.cache.versions import Versions, namespace_key
from camshaft.request import CacheScope


def at(version: int, name: str = "n", salt: str = "") -> Prefix:
    return Prefix([1], salt, scope=CacheScope(name, version))


def test_a_version_is_newer_once_and_outdates_those_before_it() -> None:
    known = Versions()
    assert [known.see(at(version)) for version in (3, 3, 5, 4, 5, 6)] == [
        False, False, True, False, False, True,
    ]  # fmt: skip
    assert [known.is_outdated(at(version)) for version in (3, 5, 6, 7)] == [
        True,
        True,
        False,
        False,
    ]


def test_requests_without_a_namespace_have_no_versions() -> None:
    known = Versions()
    assert not known.see(Prefix([1]))
    assert not known.is_outdated(Prefix([1]))
    assert namespace_key(Prefix([1])) == b""


def test_a_salt_and_a_name_are_not_taken_for_another_salt_and_name() -> None:
    keys = [
        namespace_key(at(1, name, salt)) for salt, name in [("a", "bc"), ("ab", "c"), ("", "abc")]
    ]
    assert len(set(keys)) == 3


def test_only_so_many_namespaces_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "NAMESPACES_KEPT", 2)
    known = Versions()
    for name in ("a", "b", "a", "c"):
        known.see(at(2, name))
    assert [known.is_outdated(at(1, name)) for name in "abc"] == [True, False, True]
