"""Requests composed of modules, on each cache that can have their pages."""

from __future__ import annotations

from typing import ClassVar

import pytest

from camshaft import CamshaftError
from camshaft.component import Chosen, Component, Settings
from camshaft.contracts.cache import CacheSpec, Delta, Hit, KVManager, NoSpace, Prefix, Run
from camshaft.plugins.cache.components import ModularSettings, camshaft_components
from camshaft.plugins.cache.modular.manager import Modular
from camshaft.plugins.cache.token_table.run_table import RunTable
from camshaft.request import CacheScope
from camshaft.testing.cache import KVManagerContract
from camshaft.testing.cache_driver import apply, check_books, make_spec, ready, serve, tokens_of

CATALOGUE = {one.name: one for one in camshaft_components() if one.kind == "cache"}
BELOW = ["paged", "radix", "token_table"]

FIRST, SECOND = tokens_of(8, 200), tokens_of(4, 300)
"""Modules at positions 8 and 20; what follows them begins at 24."""


def modular(below: str, spec: CacheSpec) -> Modular:
    component = CATALOGUE[below]
    if below == "token_table" and spec.page_tokens > 1:  # the manager behind it takes any page
        component = Component("cache", below, f"{RunTable.__module__}:RunTable", component.settings)
    return Modular(ModularSettings(over=Chosen(component, component.settings())), spec)


class TestContract(KVManagerContract):
    """Over one of them: requests without modules pass through."""

    kinds: ClassVar[frozenset[str]] = frozenset({"full"})

    def make(self, spec: CacheSpec) -> KVManager:
        return modular("radix", spec)


@pytest.fixture(params=BELOW)
def cache(request: pytest.FixtureRequest) -> Modular:
    return modular(request.param, make_spec(16))


def compute(cache: Modular, uid: int, tokens: list[int], position: int, **fields: object) -> None:
    """Run the request of a module to its end."""
    prefix = Prefix(list(tokens), runs=(Run(0, position),), **fields)  # type: ignore[arg-type]
    hit = cache.match(prefix, len(tokens) - 1)
    assert isinstance(cache.allocate(uid, prefix, len(tokens), hit), Delta)
    cache.commit(uid, len(tokens), uid)
    cache.free(uid, uid)
    cache.fence(uid)


def composed(own: list[int], **fields: object) -> Prefix:
    runs = (Run(0, 8), Run(8, 20), Run(12, 24))
    return Prefix([*FIRST, *SECOND, *own], runs=runs, **fields)  # type: ignore[arg-type]


def found(cache: Modular, prefix: Prefix) -> int:
    return cache.match(prefix, len(prefix.tokens) - 1).ready


def opened(cache: Modular, uid: int, prefix: Prefix) -> list[int]:
    """Open a request for all its tokens; return its table."""
    tables: list[list[int]] = [[]]
    hit = cache.match(prefix, len(prefix.tokens) - 1)
    apply(cache.allocate(uid, prefix, len(prefix.tokens), hit), tables)
    return tables[0]


def test_a_request_has_the_pages_of_its_modules_and_then_its_own(cache: Modular) -> None:
    compute(cache, 1, FIRST, 8)
    assert found(cache, composed(tokens_of(6))) == 0, "the second module is not there"
    compute(cache, 2, SECOND, 20)
    first = opened(cache, 3, composed(tokens_of(6)))
    second = opened(cache, 4, composed(tokens_of(6, 150)))
    assert (len(first), len(second)) == (5, 5)
    assert first[:3] == second[:3]
    assert len({*first, *second}) == 7
    check_books(cache)
    cache.free(3, 2)
    cache.free(4, 2)
    assert cache.usage()[0].in_use == 0
    check_books(cache)


def test_what_follows_the_same_modules_is_found_again(cache: Modular) -> None:
    compute(cache, 1, FIRST, 8)
    compute(cache, 2, SECOND, 20)
    prefix = composed(tokens_of(6))
    opened(cache, 3, prefix)
    cache.commit(3, 18, 3)
    for token in (7, 8, 9):
        prefix.tokens.append(token)
        cache.allocate(3, prefix, len(prefix.tokens))
    cache.commit(3, 20, 4)
    cache.free(3, 4)
    assert found(cache, composed([*tokens_of(6), 7, 8, 9])) == 20
    assert found(cache, composed([*tokens_of(6), 8])) == 16
    moved = Prefix(prefix.tokens, runs=(Run(0, 8), Run(8, 20), Run(12, 28)))
    assert found(cache, moved) == 12, "it stands at another position"
    assert ready(cache, prefix.tokens) == 0, "a text is no composition"


def test_a_module_at_position_0_is_an_ordinary_prefix(cache: Modular) -> None:
    serve(cache, 1, [*FIRST, 1], 1)
    compute(cache, 2, SECOND, 20)
    prefix = Prefix([*FIRST, *SECOND, 5], runs=(Run(0, 0), Run(8, 20), Run(12, 24)))
    assert found(cache, prefix) == 12


@pytest.mark.parametrize(
    "fields", [{"salt": "a"}, {"adapter": 1}, {"scope": CacheScope("name", 1)}]
)
def test_what_isolates_requests_isolates_modules(cache: Modular, fields: dict[str, object]) -> None:
    for uid, (tokens, position) in enumerate([(FIRST, 8), (SECOND, 20)], 1):
        compute(cache, uid, tokens, position, **fields)
    assert found(cache, composed([1], **fields)) == 12
    assert found(cache, composed([1])) == 0


def test_a_newer_version_of_a_namespace_outdates_modules_and_what_follows(cache: Modular) -> None:
    old = CacheScope("name", 1)
    compute(cache, 1, FIRST, 8, scope=old)
    compute(cache, 2, SECOND, 20, scope=old)
    opened(cache, 3, composed(tokens_of(6), scope=old))
    compute(cache, 4, FIRST, 8, scope=CacheScope("name", 2))
    assert found(cache, composed(tokens_of(6), scope=old)) == 0
    assert found(cache, composed(tokens_of(6), scope=CacheScope("name", 2))) == 0
    check_books(cache)


def test_wrong_pages_take_with_them_what_followed_them(cache: Modular) -> None:
    compute(cache, 1, FIRST, 8)
    compute(cache, 2, SECOND, 20)
    prefix = composed(tokens_of(6))
    opened(cache, 3, prefix)
    cache.commit(3, 18, 3)
    late = Prefix(list(FIRST), runs=(Run(0, 8),))
    cache.evict(0, 16)  # nothing of what is in use
    opened(cache, 5, late)
    cache.free(3, 3)
    cache.free(5, 3, forget=True)
    cache.fence(3)
    compute(cache, 6, FIRST, 8)
    compute(cache, 7, SECOND, 20)
    assert found(cache, composed(tokens_of(6))) == 12
    check_books(cache)


def test_a_request_without_space_leaves_its_modules_to_others(cache: Modular) -> None:
    compute(cache, 1, FIRST, 8)
    compute(cache, 2, SECOND, 20)
    prefix = composed(tokens_of(60))
    hit = cache.match(prefix, 71)
    assert hit.ready == 12
    before = cache.usage()
    assert isinstance(cache.allocate(3, prefix, 72, hit), NoSpace)
    assert cache.usage() == before
    assert not cache.requests
    check_books(cache)
    assert isinstance(cache.allocate(3, prefix, 60, hit), Delta)


def test_modules_come_with_the_first_allocation(cache: Modular) -> None:
    prefix = composed([1])
    with pytest.raises(ValueError, match="opened without its modules"):
        cache.allocate(1, prefix, 13)
    compute(cache, 2, FIRST, 8)
    compute(cache, 3, SECOND, 20)
    hit = cache.match(prefix, 12)
    cache.evict(0, 1)
    with pytest.raises(ValueError, match="not of the present epoch"):
        cache.allocate(1, prefix, 13, hit)
    with pytest.raises(ValueError, match="not of the present epoch"):
        cache.allocate(1, prefix, 13, Hit(12, handle=object()))


def test_a_fork_shares_modules_and_full_pages(cache: Modular) -> None:
    compute(cache, 1, FIRST, 8)
    compute(cache, 2, SECOND, 20)
    parent = composed(tokens_of(6))
    table = opened(cache, 3, parent)
    cache.commit(3, 18, 3)
    child = composed(tokens_of(6))
    tables: list[list[int]] = [[]]
    delta = cache.fork(3, 4, child, 18)
    apply(delta, tables)
    assert tables[0][:4] == table[:4]
    assert isinstance(delta, Delta)
    assert delta.copies == ((0, table[4], tables[0][4]),)
    check_books(cache)
    with pytest.raises(ValueError, match="does not have its modules"):
        cache.fork(3, 5, composed(tokens_of(6)), 8)
    with pytest.raises(ValueError, match="differs from it before"):
        cache.fork(3, 5, composed(tokens_of(6, 150)), 18)
    for uid in (3, 4):
        cache.free(uid, 3)
    assert cache.usage()[0].in_use == 0
    check_books(cache)


def test_a_lease_holds_modules_too(cache: Modular) -> None:
    compute(cache, 1, FIRST, 8)
    compute(cache, 2, SECOND, 20)
    opened(cache, 3, composed(tokens_of(6)))
    cache.free(3, 2, hold="lease")
    assert cache.usage()[0].pinned == 5
    cache.release("lease")
    assert cache.usage()[0].pinned == 0
    check_books(cache)


def test_capacity_is_counted_with_modules(cache: Modular) -> None:
    compute(cache, 1, FIRST, 8)
    compute(cache, 2, SECOND, 20)
    prefix = composed(tokens_of(4))
    tables = [opened(cache, 3, prefix)]
    delta = cache.allocate(3, prefix, 24)
    apply(delta, tables)
    assert len(tables[0]) == 6
    cache.shrink(3, 17, 2)
    assert cache.usage()[0].in_use == 5
    with pytest.raises(ValueError, match="cannot shrink to 11 tokens: it has modules"):
        cache.shrink(3, 11, 2)


def test_caches_that_do_not_fit_are_refused_with_their_reasons() -> None:
    assert "sliding layers, which count tokens" in Modular.supports(4, {"full", "sliding"})[0]
    table = CATALOGUE["token_table"]
    settings = ModularSettings(over=Chosen(table, table.settings()))
    with pytest.raises(CamshaftError, match="over 'token_table': .*page"):
        Modular(settings, make_spec(4))
    assert modular("paged", make_spec(4, prefix=False)).no_modules
    assert issubclass(ModularSettings, Settings)
