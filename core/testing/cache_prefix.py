"""Promises of a KV manager about reuse: what is found again, by whom, and what never is."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ..contracts.cache import Prefix
from .cache_driver import (
    PAGE,
    apply,
    check_books,
    make_spec,
    open_request,
    ready,
    serve,
    tokens_of,
)

if TYPE_CHECKING:
    from ..contracts.cache import CacheSpec, KVManager


class PrefixPromises:
    """Part of `KVManagerContract`."""

    def make(self, spec: CacheSpec) -> KVManager:
        """Return a new manager."""
        raise NotImplementedError

    def test_full_pages_are_found_once_they_are_committed(self) -> None:
        """Not before, and not the partial page."""
        cache = self.make(make_spec(8))
        open_request(cache, 1, tokens_of(10))
        assert ready(cache, tokens_of(10)) == 0, "nothing is written yet"
        cache.commit(1, 6, 1)
        assert ready(cache, tokens_of(10)) == 4, "6 tokens fill one page"
        cache.commit(1, 10, 2)
        assert ready(cache, tokens_of(10)) == 8
        check_books(cache)

    def test_pages_are_found_after_their_writer_has_ended(self) -> None:
        """That is what a cache is for."""
        cache = self.make(make_spec(8))
        first = serve(cache, 1, tokens_of(10), 1)
        second = open_request(cache, 2, tokens_of(12))
        assert second.hit.ready == 8
        assert second.pages[:2] == first.pages[:2]
        check_books(cache)

    def test_generated_tokens_are_found_too(self) -> None:
        """A second turn reuses the answer of the first."""
        cache = self.make(make_spec(8))
        request = open_request(cache, 1, tokens_of(5))
        cache.commit(1, 5, 1)
        for token in (7, 8, 9, 10):
            request.prefix.tokens.append(token)
            cache.allocate(1, request.prefix, len(request.prefix.tokens))
            cache.commit(1, len(request.prefix.tokens) - 1, 2)
        cache.free(1, 2)
        assert ready(cache, [*tokens_of(5), 7, 8, 9, 10, 11]) == 8
        assert ready(cache, [*tokens_of(5), 7, 8, 8, 10, 11]) == 4, "token 7 differs"

    def test_a_hit_never_exceeds_the_limit(self) -> None:
        """At any limit, and all the pages within it are used."""
        cache = self.make(make_spec(8))
        serve(cache, 1, tokens_of(16), 1)
        for limit in range(17):
            found = ready(cache, tokens_of(16), limit=limit)
            assert limit // PAGE * PAGE <= found <= limit, f"limit {limit}: {found} tokens"

    def test_a_fully_cached_prompt_leaves_a_token_to_compute(self) -> None:
        """Whatever its length, also the third time."""
        cache = self.make(make_spec(16))
        for uid, length in enumerate([1, 3, 4, 5, 8, 12] * 3, 1):
            request = serve(cache, uid, tokens_of(length), uid)
            assert request.hit.ready <= length - 1
        check_books(cache)

    def test_a_match_changes_nothing(self) -> None:
        """It may be asked as often as a scheduler likes."""
        cache = self.make(make_spec(8))
        serve(cache, 1, tokens_of(9), 1)
        before = cache.usage(), cache.epoch
        prefix = Prefix(tokens_of(9))
        assert [cache.match(prefix, 8).ready for _ in range(3)] == [8, 8, 8]
        assert (cache.usage(), cache.epoch) == before

    def test_the_epoch_changes_with_what_can_be_found(self) -> None:
        """Whoever remembers a match can tell that it is old."""
        cache = self.make(make_spec(8))
        epochs = [cache.epoch]
        open_request(cache, 1, tokens_of(9))
        cache.commit(1, 9, 1)
        epochs.append(cache.epoch)
        cache.revoke(1)
        epochs.append(cache.epoch)
        cache.free(1, 1)
        cache.fence(1)
        serve(cache, 2, tokens_of(9), 2)
        epochs.append(cache.epoch)
        cache.evict(0, 1)
        epochs.append(cache.epoch)
        assert len(set(epochs)) == 5, f"the epochs were {epochs}"

    def test_eviction_to_make_room_changes_the_epoch(self) -> None:
        """Or a remembered match would name pages of somebody else."""
        cache = self.make(make_spec(3))
        serve(cache, 1, tokens_of(12), 1)
        before = cache.epoch
        open_request(cache, 2, tokens_of(4, 300))
        assert cache.epoch != before

    def test_salts_do_not_share(self) -> None:
        """Nor does one salt with none."""
        cache = self.make(make_spec(16))
        serve(cache, 1, tokens_of(9), 1, salt="a")
        assert ready(cache, tokens_of(9), salt="a") == 8
        assert [ready(cache, tokens_of(9), salt=one) for one in ("", "b", "aa", "a\0")] == [0] * 4

    def test_adapters_do_not_share(self) -> None:
        """Nor is an adapter taken for a salt."""
        cache = self.make(make_spec(16))
        serve(cache, 1, tokens_of(9), 1, adapter=1)
        assert ready(cache, tokens_of(9), adapter=1) == 8
        assert ready(cache, tokens_of(9)) == 0
        assert ready(cache, tokens_of(9), adapter=2) == 0
        assert ready(cache, tokens_of(9), salt="1") == 0

    def test_managers_of_different_identity_do_not_share_a_memo(self) -> None:
        """The same prefix object may meet two models."""
        one = self.make(make_spec(8))
        other = self.make(make_spec(8, identity=b"other"))
        prefix = Prefix(tokens_of(9))
        for cache in (one, other):
            assert cache.match(prefix, 8).ready == 0
            cache.allocate(1, prefix, 9)
            cache.commit(1, 9, 1)
            assert cache.match(Prefix(tokens_of(9)), 8).ready == 8
            assert cache.match(prefix, 8).ready == 8

    def test_near_duplicates_do_not_collide(self) -> None:
        """Prompts made to defeat weak hashes find nothing at or after the first difference."""
        cache = self.make(make_spec(16))
        serve(cache, 1, [1000] * 32, 1)
        summed = [1000] * 32
        summed[3], summed[4] = 1031, 999
        assert ready(cache, summed) == 0, "equal in sums of 31 * a + b"
        swapped = [1000] * 32
        swapped[9], swapped[10] = 1001, 999
        assert ready(cache, swapped) == 8, "equal in the sum of its tokens"
        serve(cache, 2, tokens_of(32), 2)
        ordered = tokens_of(32)
        ordered[5], ordered[6] = ordered[6], ordered[5]
        assert ready(cache, ordered) == 4, "equal but for the order"

    def test_a_page_is_found_only_behind_the_same_pages(self) -> None:
        """The second page of A is no page of a prompt that begins otherwise."""
        cache = self.make(make_spec(16))
        serve(cache, 1, tokens_of(13), 1)
        assert ready(cache, [*tokens_of(4, 300), *tokens_of(9, 104)]) == 0
        assert ready(cache, tokens_of(9, 104)) == 0

    def test_no_random_near_duplicate_collides(self) -> None:
        """Thousands of prompts that differ in one or two tokens."""
        cache = self.make(make_spec(16))
        base = [1000 + place % 3 for place in range(32)]
        serve(cache, 1, base, 1)
        chance = random.Random(0)
        for _ in range(3000):
            other = list(base)
            places = sorted(chance.sample(range(32), chance.choice([1, 2])))
            shift = chance.choice([1, 2, 31, 256, 65536, -1])
            for sign, place in zip((1, -1), places, strict=False):
                other[place] += sign * shift
            found = ready(cache, other)
            assert found <= places[0], f"{found} tokens found, {other} differs at {places[0]}"

    def test_equal_pages_of_two_writers_are_both_accounted_for(self) -> None:
        """Neither knew of the other when it began."""
        cache = self.make(make_spec(8))
        open_request(cache, 1, tokens_of(9))
        open_request(cache, 2, tokens_of(9))
        cache.commit(1, 9, 1)
        cache.commit(2, 9, 1)
        for uid in (1, 2):
            cache.free(uid, 1)
        cache.fence(1)
        usage = cache.usage()[0]
        assert usage.free + usage.evictable == 8
        assert ready(cache, tokens_of(9)) == 8
        check_books(cache)

    def test_pages_of_a_failed_step_are_not_found(self) -> None:
        """Nothing was written there. What an earlier step wrote stays."""
        cache = self.make(make_spec(8))
        open_request(cache, 1, tokens_of(13))
        cache.commit(1, 4, 1)
        cache.commit(1, 13, 2)
        cache.revoke(2)
        assert ready(cache, tokens_of(13)) == 4
        cache.free(1, 2)
        cache.fence(2)
        assert ready(cache, tokens_of(13)) == 4
        assert cache.usage()[0].in_use == cache.usage()[0].pinned == 0
        check_books(cache)

    def test_what_a_distrusted_request_wrote_is_not_found(self) -> None:
        """What it had reused is still good."""
        cache = self.make(make_spec(8))
        serve(cache, 1, tokens_of(5), 1)
        request = open_request(cache, 2, tokens_of(13))
        assert request.hit.ready == 4
        cache.commit(2, 13, 2)
        assert ready(cache, tokens_of(13)) == 12
        cache.free(2, 2, forget=True)
        cache.fence(2)
        assert ready(cache, tokens_of(13)) == 4
        check_books(cache)

    def test_what_a_request_wrote_before_it_was_preempted_is_distrusted_too(self) -> None:
        """It was computed from the same text, and may be why the rest is wrong."""
        cache = self.make(make_spec(8))
        request = open_request(cache, 1, tokens_of(13))
        cache.commit(1, 9, 1)
        cache.free(1, 1)
        cache.fence(1)
        hit = cache.match(request.prefix, 12)
        apply(cache.allocate(1, request.prefix, 13, hit), request.tables)
        cache.commit(1, 13, 2)
        cache.free(1, 2, forget=True)
        assert ready(cache, tokens_of(13)) == 0
        check_books(cache)

    def test_a_request_may_turn_out_to_be_wrong_when_it_has_lost_its_pages(self) -> None:
        """Its last step was in flight when it was preempted."""
        cache = self.make(make_spec(16))
        serve(cache, 1, tokens_of(5), 1)
        open_request(cache, 2, tokens_of(13))
        open_request(cache, 3, tokens_of(9, 300))
        for uid, tokens in ((2, 13), (3, 9)):
            cache.commit(uid, tokens, 2)
            cache.free(uid, 2)
        before = cache.epoch
        cache.distrust(2)
        assert cache.epoch != before, "what can be found has changed"
        cache.fence(2)
        assert ready(cache, tokens_of(13)) == 4, "what it had reused is still good"
        assert ready(cache, tokens_of(9, 300)) == 8, "what others wrote is, too"
        check_books(cache)

    def test_clearing_drops_all_that_nobody_uses(self) -> None:
        """What is in use stays where it is, and can be found."""
        cache = self.make(make_spec(16))
        serve(cache, 1, tokens_of(9), 1)
        open_request(cache, 2, tokens_of(9, 300))
        cache.commit(2, 9, 2)
        assert cache.clear() == 2
        assert ready(cache, tokens_of(9)) == 0
        assert ready(cache, tokens_of(9, 300)) == 8
        assert cache.usage()[0].in_use == 3
        check_books(cache)

    def test_without_reuse_nothing_is_found(self) -> None:
        """And pages are free as soon as they are freed."""
        cache = self.make(make_spec(8, prefix=False))
        serve(cache, 1, tokens_of(12), 1)
        assert ready(cache, tokens_of(12)) == 0
        assert cache.usage()[0].free == 8
        check_books(cache)

    def test_a_leased_page_can_be_reused(self) -> None:
        """Reading does not hurt a lease."""
        cache = self.make(make_spec(8))
        open_request(cache, 1, tokens_of(9))
        cache.commit(1, 9, 1)
        cache.free(1, 1, hold="transfer")
        cache.fence(1)
        open_request(cache, 2, tokens_of(9))
        cache.free(2, 2)
        cache.fence(2)
        assert cache.usage()[0].pinned == 3, "the lease still holds its 3 pages"
        cache.release("transfer")
        assert cache.usage()[0].pinned == 0
        assert ready(cache, tokens_of(9)) == 8
        check_books(cache)

    def test_events_tell_what_was_stored_and_evicted(self) -> None:
        """Once each; asking takes them away."""
        cache = self.make(make_spec(4))
        serve(cache, 1, tokens_of(12), 1)
        cache.evict(0, 1)
        open_request(cache, 2, tokens_of(12, 300))
        totals = {"stored": 0, "evicted": 0}
        for event in cache.events():
            totals[event.kind] += event.pages
        assert totals == {"stored": 3, "evicted": 2}
        assert cache.events() == []
