from __future__ import annotations

import random

import pytest

from camshaft.contracts.cache import Prefix
from camshaft.plugins.cache.digests import PageDigests
from camshaft.request import EVERYWHERE, CacheScope

DIGESTS = PageDigests(b"model", 4)


def hexes(prefix: Prefix, pages: int) -> list[str]:
    return [one.hex() for one in DIGESTS.of(prefix, pages)]


def test_digests_are_the_same_in_every_process_and_on_every_machine() -> None:
    assert hexes(Prefix([1, 2, 3, 4, 5, 6, 7, 8, 9]), 2) == [
        "ab8941969f9147fc43d77891c2c48316",
        "5ef6c87010d02df51d86a32059f57288",
    ]


def test_growing_prefixes_are_hashed_once() -> None:
    prefix = Prefix([1, 2, 3, 4, 5])
    first = list(DIGESTS.of(prefix, 1))
    prefix.tokens += [6, 7, 8]
    assert DIGESTS.of(prefix, 2)[:1] == first
    assert hexes(prefix, 2) == hexes(Prefix([1, 2, 3, 4, 5, 6, 7, 8]), 2)
    prefix.tokens[0] = 99  # only to show that known pages are not hashed again
    assert DIGESTS.of(prefix, 2)[:1] == first


def test_a_page_that_is_not_full_has_no_digest() -> None:
    with pytest.raises(AssertionError, match="not full"):
        DIGESTS.of(Prefix([1, 2, 3]), 1)


def test_everything_that_isolates_changes_every_digest() -> None:
    tokens = [1, 2, 3, 4]
    pages = [
        PageDigests(identity, size).of(Prefix(list(tokens), salt, adapter), 1)[0]
        for identity, size, salt, adapter in [
            (b"model", 4, "", 0),
            (b"other", 4, "", 0),
            (b"model", 2, "", 0),
            (b"model", 4, "a", 0),
            (b"model", 4, "\ud800", 0),
            (b"model", 4, "", 1),
            (b"model", 4, "", -1),
            (b"model/", 4, "", 0),
        ]
    ]
    assert len(set(pages)) == 8


def test_namespace_and_version_change_every_digest_and_a_time_to_live_none() -> None:
    def first(salt: str = "", scope: CacheScope = EVERYWHERE) -> bytes:
        return DIGESTS.of(Prefix([1, 2, 3, 4], salt, scope=scope), 1)[0]

    scopes = [CacheScope("a", 1), CacheScope("a", 2), CacheScope("ab", 1), CacheScope("a\0", 1)]
    assert len({first(), first("a"), *map(first, [""] * 4, scopes), first("a", scopes[0])}) == 7
    assert first(scope=CacheScope("a", 1, 60.0)) == first(scope=CacheScope("a", 1))


def test_a_namespace_cannot_be_made_to_look_like_tokens() -> None:
    # As bytes, version 7 and this name are the page [7, 0, 8, 9] of somebody without a namespace.
    name = b"".join(token.to_bytes(4, "little") for token in (8, 9)).decode()
    plain = DIGESTS.of(Prefix([7, 0, 8, 9, 1, 2, 3, 4]), 2)
    assert DIGESTS.of(Prefix([1, 2, 3, 4], scope=CacheScope(name, 7)), 1)[0] not in plain


def test_PFX_03_a_hundred_thousand_near_duplicates_do_not_collide() -> None:
    chance = random.Random(3)
    digests: set[bytes] = set()
    prompts: set[tuple[int, ...]] = set()
    while len(prompts) < 100_000:
        page = [1000, 1000, 1000, 1000]
        first, second = chance.sample(range(4), 2)
        shift = chance.randrange(1, 1 << 20)
        page[first] += 31 * shift
        page[second] -= shift
        if chance.random() < 0.5:
            page[chance.randrange(4)] ^= 1 << chance.randrange(16)
        if tuple(page) not in prompts:
            prompts.add(tuple(page))
            digests.add(DIGESTS.of(Prefix(page), 1)[0])
    assert len(digests) == 100_000


def test_units_and_pages_have_the_same_digests() -> None:
    tokens = [3 * token for token in range(100)]
    whole = DIGESTS.of(Prefix(list(tokens)), 25)
    for unit, last in enumerate((7, 15, 23)):
        assert DIGESTS.end(Prefix(list(tokens)), unit) == whole[last]
    assert DIGESTS.parent(Prefix(list(tokens)), 3) == whole[23]
    assert DIGESTS.parent(Prefix(list(tokens)), 0) == DIGESTS.root(Prefix([]))
    piecewise = Prefix(tokens[:21])
    DIGESTS.of(piecewise, 5)
    piecewise.tokens += tokens[21:]
    assert DIGESTS.of(piecewise, 25) == whole
    assert len(set(whole)) == 25


def test_units_of_another_size_have_other_digests() -> None:
    prefix = Prefix(list(range(100)))
    sizes = [PageDigests(b"model", 4, unit).end(prefix, 0) for unit in (1, 2, 8)]
    assert len(set(sizes)) == 3
    assert PageDigests(b"model", 4, 1).of(prefix, 2)[1] == PageDigests(b"model", 4, 1).end(
        prefix, 1
    )
