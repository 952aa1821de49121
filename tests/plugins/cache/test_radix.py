from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from camshaft import CamshaftError
from camshaft.contracts.cache import Delta, GroupSpec, Hit, Prefix, TableWrite
from camshaft.plugins.cache.components import LruSettings, RadixSettings
from camshaft.plugins.cache.policies.lru import Lru
from camshaft.plugins.cache.radix.manager import Radix
from camshaft.testing.cache_driver import make_spec, open_request, ready, serve, tokens_of


def radix(*pages: int, page_tokens: int = 4) -> Radix:
    spec = replace(make_spec(*pages), page_tokens=page_tokens)
    return Radix(RadixSettings(), replace(spec, eviction=lambda: Lru(LruSettings())))


def runs(cache: Radix, group: int = 0) -> list[list[int]]:
    """The runs of pages in a tree, by place and page."""
    nodes = sorted(cache.trees[group].nodes(), key=lambda one: (one.first, one.run))
    return [one.run for one in nodes]


def test_groups_with_windows_are_refused_with_the_cure() -> None:
    assert Radix.supports(16, {"full"}) == []
    assert Radix.supports(16, {"full", "sliding"}) == [
        "it keeps all tokens, and the model has sliding layers. Choose cache 'paged'."
    ]


def test_faults_of_a_spec_are_named_together() -> None:
    groups = (GroupSpec("full", 0), GroupSpec("state", 4), GroupSpec("sliding", 4, 8))
    with pytest.raises(CamshaftError) as error:
        Radix(RadixSettings(), replace(make_spec(4), groups=groups))
    assert str(error.value) == (
        "cache 'radix' cannot serve this: group 0 has 0 pages; group 1 is a state group; "
        "group 2 is a sliding group. It manages full groups, of at least 1 page each."
    )


def test_a_prompt_is_one_node_and_grows_with_its_chunks() -> None:
    cache = radix(8)
    open_request(cache, 1, tokens_of(18))
    cache.commit(1, 6, 1)
    assert runs(cache) == [[1]]
    cache.commit(1, 18, 2)
    assert runs(cache) == [[1, 2, 3, 4]]


def test_a_node_is_split_where_a_request_leaves_it() -> None:
    cache = radix(12)
    serve(cache, 1, tokens_of(16), 1)
    other = serve(cache, 2, [*tokens_of(10), *tokens_of(6, 300)], 2)
    assert other.hit.ready == 8
    assert runs(cache) == [[1, 2], [3, 4], [5, 6]]


def test_nodes_are_joined_when_what_parted_them_is_evicted() -> None:
    cache = radix(12)
    request = open_request(cache, 1, tokens_of(16))
    cache.commit(1, 16, 1)
    serve(cache, 2, [*tokens_of(10), *tokens_of(6, 300)], 1)
    assert runs(cache) == [[1, 2], [3, 4], [5, 6]]
    assert cache.evict(0, 2) == 2
    assert runs(cache) == [[1, 2, 3, 4]]
    cache.free(1, 1)
    assert ready(cache, [*request.prefix.tokens, 1]) == 16
    assert cache.check_integrity() == []


def test_nodes_that_were_used_at_different_times_are_not_joined() -> None:
    cache = radix(12)
    serve(cache, 1, tokens_of(16), 1)
    serve(cache, 2, [*tokens_of(10), *tokens_of(6, 300)], 2)
    serve(cache, 3, tokens_of(9), 3)
    cache.evict(0, 2)
    assert runs(cache) == [[1, 2], [5, 6]], "the end of the first went unused for longest"
    assert cache.evict(0, 1) == 1
    assert runs(cache) == [[1, 2], [5]], "a leaf is evicted from its end"


@pytest.mark.parametrize("page_tokens", [1, 2, 16])
def test_two_prompts_that_computed_the_same_run_end_up_with_one_copy(page_tokens: int) -> None:
    cache = radix(200, page_tokens=page_tokens)
    tokens = tokens_of(48)
    first, second = (open_request(cache, uid, tokens) for uid in (1, 2))
    cache.commit(1, 48, 1)
    delta = cache.commit(2, 48, 1)
    assert delta == Delta((TableWrite(0, 0, first.pages),))
    pages = 48 // page_tokens
    assert cache.usage()[0][1:] == (200 - 2 * pages, 0, pages, pages), "the copies wait for step 1"
    cache.fence(1)
    assert cache.usage()[0][1:] == (200 - pages, 0, pages, 0)
    assert not set(second.pages) & set(first.pages)
    assert cache.check_integrity() == []


def test_the_copy_of_a_generated_run_is_given_back_when_its_request_ends() -> None:
    cache = radix(8)
    requests = [open_request(cache, uid, tokens_of(6)) for uid in (1, 2)]
    for request in requests:
        cache.commit(request.uid, 6, 1)
        request.prefix.tokens.extend([7] * 7)
        cache.allocate(request.uid, request.prefix, 13)
        assert cache.commit(request.uid, 12, 2) == Delta(), "steps in flight read these pages"
    assert ready(cache, [*tokens_of(6), *[7] * 9]) == 4, "the tree is left alone while it decodes"
    cache.free(1, 2)
    assert ready(cache, [*tokens_of(6), *[7] * 9]) == 12
    cache.free(2, 2)
    cache.fence(2)
    assert cache.usage()[0][1:] == (5, 3, 0, 0)


def test_a_lease_keeps_the_copy_that_its_request_had() -> None:
    cache = radix(8)
    requests = [open_request(cache, uid, tokens_of(4)) for uid in (1, 2)]
    for request in requests:
        request.prefix.tokens.extend(tokens_of(5, 300))
        cache.allocate(request.uid, request.prefix, 9)
        cache.commit(request.uid, 8, 1)
    cache.free(1, 1)
    cache.free(2, 1, hold="transfer")
    cache.fence(1)
    assert cache.usage()[0].pinned == 3 + 1, "its own pages, and the equal one in the tree"
    cache.release("transfer")
    assert cache.usage()[0][1:] == (6, 2, 0, 0)


def test_a_shared_page_of_a_fork_goes_into_the_tree_with_its_last_holder() -> None:
    cache = radix(8)
    request = open_request(cache, 1, tokens_of(4))
    request.prefix.tokens.extend(tokens_of(5, 300))
    cache.allocate(1, request.prefix, 9)
    cache.fork(1, 2, Prefix([*tokens_of(4), *tokens_of(4, 300), 7]), 8)
    cache.commit(1, 8, 1)
    cache.commit(2, 8, 1)
    cache.free(1, 1)
    assert ready(cache, [*tokens_of(4), *tokens_of(5, 300)]) == 0
    assert cache.check_integrity() == []
    cache.free(2, 1)
    assert ready(cache, [*tokens_of(4), *tokens_of(5, 300)]) == 8


def test_the_oldest_prefix_is_evicted_first_and_from_its_end() -> None:
    cache = radix(7)
    serve(cache, 1, tokens_of(12), 1)
    serve(cache, 2, tokens_of(12, 300), 2)
    serve(cache, 3, tokens_of(5), 3)
    left = []
    for pages in (1, 2, 2):
        cache.evict(0, pages)
        left.append((ready(cache, tokens_of(13)), ready(cache, tokens_of(13, 300))))
    assert left == [(8, 12), (4, 8), (4, 0)]


def test_what_is_left_of_an_evicted_run_is_found_and_grows_again() -> None:
    cache = radix(12)
    serve(cache, 1, tokens_of(40), 1)
    assert [cache.evict(0, 1) for _ in range(4)] == [1, 1, 1, 1]
    assert ready(cache, tokens_of(41)) == 24
    cache.evict(0, 1)
    again = serve(cache, 2, tokens_of(40), 2)
    assert again.hit.ready == 20
    assert ready(cache, tokens_of(41)) == 40
    assert cache.check_integrity() == []


def test_what_was_computed_from_forgotten_pages_is_forgotten_too() -> None:
    cache = radix(16)
    open_request(cache, 1, tokens_of(4))
    cache.commit(1, 4, 1)
    reader = open_request(cache, 2, tokens_of(16), length=8)
    assert reader.hit.ready == 4
    cache.commit(2, 8, 2)
    cache.free(1, 2, forget=True)
    serve(cache, 3, tokens_of(4), 3)
    assert ready(cache, tokens_of(16)) == 4, "page 1 was computed from a page that was wrong"
    cache.allocate(2, reader.prefix, 16)
    cache.commit(2, 16, 4)
    assert ready(cache, tokens_of(16)) == 4, "and so are later pages of the same reader"
    assert cache.check_integrity() == []


def test_steps_after_a_failed_one_are_revoked_with_it() -> None:
    cache = radix(16)
    open_request(cache, 1, tokens_of(16))
    for step in (1, 2, 3):
        cache.commit(1, 4 * step, step)
    cache.revoke(2)
    assert ready(cache, tokens_of(16)) == 4
    cache.commit(1, 16, 4)
    cache.free(1, 4)
    assert ready(cache, tokens_of(16)) == 4, "nothing that it writes can be trusted"


def test_a_step_that_is_complete_is_not_revoked() -> None:
    cache = radix(16)
    open_request(cache, 1, tokens_of(16))
    cache.commit(1, 4, 1)
    cache.fence(1)
    cache.commit(1, 8, 1)
    cache.revoke(1)
    assert ready(cache, tokens_of(16)) == 8


def test_a_fork_shares_the_fate_of_a_failed_step() -> None:
    cache = radix(16)
    open_request(cache, 1, tokens_of(6))
    cache.commit(1, 6, 1)
    cache.fork(1, 2, Prefix(tokens_of(8)), 6)
    cache.revoke(1)
    cache.allocate(2, cache.requests[2].prefix, 8)
    cache.commit(2, 8, 2)
    cache.free(2, 2)
    assert ready(cache, tokens_of(9)) == 0


def test_a_fork_shares_that_fate_also_for_pages_that_are_not_in_the_tree() -> None:
    cache = radix(16)
    for uid, steps in ((1, (1, 1)), (2, (2, 3))):
        request = open_request(cache, uid, tokens_of(4))
        cache.commit(uid, 4, steps[0])
        request.prefix.tokens.extend(tokens_of(5, 300))
        cache.allocate(uid, request.prefix, 9)
        cache.commit(uid, 8, steps[1])
        if uid == 1:
            cache.free(1, 1)
            cache.fence(1)
    again = [*tokens_of(4), *tokens_of(5, 300)]
    cache.fork(2, 3, Prefix([*again]), 8)
    cache.revoke(3)
    cache.free(2, 3)
    assert ready(cache, again) == 8, "request 1 wrote this"
    cache.evict(0, 1)
    cache.free(3, 3)
    assert ready(cache, again) == 4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache, hit: cache.allocate(1, Prefix(tokens_of(9)), 9, hit), "request 1 is open"),
        (lambda cache, hit: cache.allocate(9, Prefix(tokens_of(9)), 3, hit), "brings 8 tokens"),
        (lambda cache, hit: cache.commit(1, 99, 2), "commits 99 tokens, but has only 9"),
        (lambda cache, hit: cache.shrink(1, 7, 2), "cannot shrink to 7 tokens: 8 are committed"),
        (lambda cache, hit: cache.fork(1, 2, Prefix(tokens_of(9)), 3), "request 2 is open"),
        (lambda cache, hit: cache.fork(1, 9, Prefix(tokens_of(9)), 13), "no pages for 13 tokens"),
        (lambda cache, hit: cache.fork(1, 9, Prefix([1, 2, 3]), 3), "differs from it before"),
        (lambda cache, hit: cache.fork(1, 9, Prefix([], "a"), 0), "another salt"),
    ],
)
def test_misuse_is_refused_and_changes_nothing(
    call: Callable[[Radix, Hit], object], message: str
) -> None:
    cache = radix(16, 16)
    request = open_request(cache, 1, tokens_of(9))
    cache.commit(1, 8, 1)
    open_request(cache, 2, tokens_of(4, 300))
    before = cache.usage()
    with pytest.raises(ValueError, match=message):
        call(cache, cache.match(request.prefix, 8))
    assert cache.usage() == before
    assert cache.check_integrity() == []


def test_a_hit_of_an_older_epoch_is_refused_and_one_from_before_a_split_is_not() -> None:
    cache = radix(12)
    serve(cache, 1, tokens_of(12), 1)
    prefix = Prefix(tokens_of(13))
    hit = cache.match(prefix, 8)
    open_request(cache, 2, tokens_of(5))
    assert isinstance(cache.allocate(3, prefix, 13, hit), Delta)
    hit = cache.match(prefix, 8)
    cache.evict(0, 1)
    with pytest.raises(ValueError, match="not of the present epoch"):
        cache.allocate(4, prefix, 13, hit)


def test_roots_of_salts_that_hold_nothing_are_dropped() -> None:
    cache = radix(8)
    for uid in range(1, 200):
        serve(cache, uid, tokens_of(8), uid, salt=f"tenant {uid}")
    assert len(cache.trees[0].roots) == 4, "8 pages of 2 for each salt"


def test_the_state_stays_small_however_many_requests_come() -> None:
    cache = radix(64, 40)
    for uid in range(1, 1501):
        own = tokens_of(10, 1000 + uid * 20)
        serve(cache, uid, [tokens_of(30), [*tokens_of(20), *own], own][uid % 3], uid)
    assert cache.check_integrity() == []
    for tree in cache.trees:
        pool = tree.pool
        assert (pool.special, pool.fenced_nodes, pool.fenced_pages, +pool.coming) == (
            {},
            {},
            {},
            {},
        )


def test_a_match_costs_the_same_however_much_is_cached() -> None:
    cache = radix(6000)
    looked = count()
    document = tokens_of(400)

    class Counted(dict):  # type: ignore[type-arg]
        def get(self, *key: object) -> object:
            next(looked)
            return super().get(*key)

    def look_ups() -> int:
        for node in [*cache.trees[0].nodes(), *cache.trees[0].roots.values()]:
            node.children = Counted(node.children)
        before = next(looked)
        assert ready(cache, [*document, 1]) == 400
        return next(looked) - before - 1

    serve(cache, 1, document, 1)
    few = look_ups()
    for uid in range(2, 500):
        serve(cache, uid, tokens_of(40, 1000 * uid), uid)
    assert (few, look_ups()) == (1, 1)


def spoil_locks(cache: Radix) -> None:
    cache.requests[1].lasts[0].locks += 1


def spoil_table(cache: Radix) -> None:
    cache.requests[1].groups[0][0] = 7


def spoil_lengths(cache: Radix) -> None:
    cache.requests[1].groups[1].pop()


def spoil_free(cache: Radix) -> None:
    cache.trees[0].pool.free.append(cache.requests[1].groups[0][0])


def spoil_content(cache: Radix) -> None:
    cache.requests[1].prefix.memo.clear()
    cache.requests[1].prefix.tokens[0] = 7


def spoil_parent(cache: Radix) -> None:
    cache.requests[1].lasts[0].first += 1


def spoil_counts(cache: Radix) -> None:
    cache.trees[0].pool.counts[0] -= 1


def spoil_standing(cache: Radix) -> None:
    next(one for one in cache.trees[0].nodes() if not one.locks).newest = 99


def spoil_leases(cache: Radix) -> None:
    cache.trees[0].pool.lease_loose(cache.requests[1].groups[0][2:])


def lose_a_page(cache: Radix) -> None:
    cache.trees[0].pool.free.pop()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (spoil_locks, "count 2 locks, 1 paths lead there"),
        (spoil_table, "its path is another"),
        (spoil_lengths, "different lengths, \\[3, 2\\]"),
        (spoil_free, "is free and in a node"),
        (spoil_content, "a path of other tokens"),
        (spoil_parent, "begins at page 1, behind 0"),
        (spoil_counts, "are counted"),
        (spoil_standing, "are EVICTABLE, and should be FENCED"),
        (spoil_leases, "counts 1 holders and 1 leases, it has 1 and 0"),
        (lose_a_page, "is lost"),
    ],
)
def test_integrity_names_what_is_broken(spoil: Callable[[Radix], None], words: str) -> None:
    cache = radix(8, 8)
    serve(cache, 2, tokens_of(8, 300), 1)
    open_request(cache, 1, tokens_of(9))
    cache.commit(1, 9, 2)
    assert cache.check_integrity() == []
    spoil(cache)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError("; ".join(cache.check_integrity()))
