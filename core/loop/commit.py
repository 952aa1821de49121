"""Commit of a plan: prefix matches, capacity and victims, in the plan's order."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from ..contracts.cache import EMPTY_DELTA, NULL_PAGE, Delta, NoSpace, Wait
from ..contracts.scheduler import Item, Preemption, Rows
from ..errors import CamshaftError
from ..step import int32
from .batch import Batch
from .columns import NOBODY, Columns, Share
from .declare import granted_at_once
from .queues import EngineView
from .singles import Singles
from .state import RequestState, Status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..contracts.cache import KVManager
    from ..contracts.scheduler import Plan, PreemptMode, Scheduler, SchedulerLimits
    from ..step import Int32
    from .declare import Declarer
    from .slots import Slots
    from .stats import Stats
    from .table import SlotTable

    Int64 = NDArray[np.int64]

# members of an Enum are slow to look up, and these are asked for at every item
_AUTO, _LAST, _NONE = Rows.AUTO, Rows.LAST, Rows.NONE
_RUNNING, _WAITING = Status.RUNNING, Status.WAITING

NO_SINGLES = Singles([], NOBODY.slots, NOBODY.uids, 0)


class PlanError(CamshaftError):
    """A scheduler broke the rules of its contract."""


class Committer:
    """Turns plans into batches. The only place that gives out slots and pages."""

    def __init__(
        self,
        view: EngineView,
        cache: KVManager,
        slots: Slots,
        table: SlotTable,
        scheduler: Scheduler,
        limits: SchedulerLimits,
        stats: Stats,
        declarer: Declarer,
        *,
        page_tokens: int,
        wants_fresh: bool,
        causal: bool = True,
    ) -> None:
        self.view = view
        self.cache = cache
        self.slots = slots
        self.table = table
        self.scheduler = scheduler
        self.limits = limits
        self.stats = stats
        self.declarer = declarer
        self.page_tokens = page_tokens
        self.grain = granted_at_once(page_tokens)
        self.wants_fresh = wants_fresh
        self.causal = causal
        self.newest_step = 0
        self.transfers: dict[int, RequestState] = {}
        self._dropped: set[int] = set()
        self._tight = False

    def checked(self, plan: Plan) -> Plan:
        """Return a plan that may be committed.

        Returns:
            The plan, with an item for each request of `one_each` unless that is of this turn's
            `View.one_pending`, whose requests need no check.

        Raises:
            PlanError: It breaks the scheduler's contract. Names the scheduler and the rule.
        """
        singles = plan.one_each
        if not isinstance(singles, Singles) or singles.turn != self.view.turn:
            items = [*(Item(request, 1) for request in singles), *plan.items]
            plan, singles = replace(plan, one_each=(), items=items), NO_SINGLES
        self._check_features(plan)
        self._check_items(plan, singles)
        return plan

    def _check_items(self, plan: Plan, singles: Singles) -> None:
        seen: set[int] = set()
        total, admitted = len(singles), 0
        others: list[int] = singles.uids.tolist() if plan.items else []
        for item in plan.items:
            state = item.request
            if not isinstance(state, RequestState):
                self._broken("an item is not a request of the view")
            if not state.ready:
                self._broken(f"request {state.uid} is not ready")
            if not 1 <= item.tokens <= state.pending:
                self._broken(
                    f"request {state.uid} got {item.tokens} tokens, it has {state.pending} pending"
                )
            seen.add(state.uid)
            total += item.tokens + item.drafts
            admitted += state.slot < 0
        if len(seen) < len(plan.items) or not seen.isdisjoint(others):
            self._broken("a request is planned twice")
        if total > self.limits.step_tokens:
            self._broken(f"{total} tokens are planned, the limit is {self.limits.step_tokens}")
        if admitted > self.slots.free:
            self._broken(f"{admitted} requests are admitted to {self.slots.free} free slots")

    def _check_features(self, plan: Plan) -> None:
        """Refuse what the contract has and this version does not run: nothing is ignored."""
        beyond = {Rows.DRAFTS, Rows.ALL}
        if any(item.drafts or item.rows in beyond for item in plan.items):
            self._broken("drafts and rows beyond the last are not run by this version")
        sizes, items = plan.nano_batches, len(plan.one_each) + len(plan.items)
        if sizes and (min(sizes) < 1 or sum(sizes) != items):
            self._broken(f"nano-batches have {sizes} items, and {items} are planned")

    def _broken(self, rule: str) -> NoReturn:
        raise PlanError(f"scheduler {type(self.scheduler).__name__}: {rule}.")

    def commit(self, plan: Plan, step: int) -> Batch:
        """Place the requests of a checked plan in step `step`.

        One that is preempted on the way is dropped: it is not admitted again in the same step.
        """
        batch = Batch(step)
        self._dropped.clear()
        self._tight = False
        for preemption in plan.preempt:
            state = preemption.request
            assert isinstance(state, RequestState)
            if state.status is Status.RUNNING:
                self.preempt(state, preemption.cause, preemption.mode)
        singles = plan.one_each if isinstance(plan.one_each, Singles) else NO_SINGLES
        self._find_pages(singles, batch)
        for item in plan.items:
            self._place(item, batch)
        batch.arrange(self._columns(singles))
        if plan.nano_batches:
            batch.nano_batch = _nano_batches(plan, batch.columns)
        return batch

    def _find_pages(self, singles: Singles, batch: Batch) -> None:
        """Let those grow that have no page for one more token."""
        table, slots = self.table, singles.slots
        short = (table.computed[slots] >= table.granted[slots]).nonzero()[0]
        if not len(short):
            return
        slots = slots[short]
        needs = table.computed[slots] + 1
        asked = self._ahead(needs, table.last_known[slots])
        columns = short.tolist(), needs.tolist(), asked.tolist()
        for row, need, tokens in zip(*columns, strict=True):
            state = singles.states[row]
            if state.status is not _RUNNING:
                continue  # preempted for another one
            delta = self._grow(state, need, tokens, batch)
            if delta is None:
                self._dropped.add(state.uid)
            else:
                self._note(state, delta, batch)

    def _columns(self, singles: Singles) -> Columns:
        """Return those that were not dropped; one that was refused as well has ended."""
        if not singles:
            return NOBODY
        keep = self.table.uid[singles.slots] == singles.uids
        if self._dropped:
            keep &= ~np.isin(singles.uids, list(self._dropped))
        return Columns.of_singles(singles.only(keep), self.table)

    def _place(self, item: Item, batch: Batch) -> None:
        state, tokens, drafts, rows = item
        assert isinstance(state, RequestState)
        waits = not self.causal and tokens < state.pending  # for a step that takes all of its text
        if not state.ready or state.uid in self._dropped or waits:
            return  # the first two: preempted or refused by an earlier part of this plan
        if state.status is _WAITING:
            delta = self._admit(state, item, batch)
            tokens = min(tokens, state.pending)  # a prefix hit may have left fewer
        elif state.computed + tokens + drafts > state.granted:
            need = state.computed + tokens + drafts
            ahead = self._whole_pages(need)
            if tokens == 1:
                ahead = self._ahead(np.array([need]), np.array([state.last_known])).item()
            delta = self._grow(state, need, ahead, batch)
        else:
            delta = EMPTY_DELTA
        if delta is None:
            return
        if delta is not EMPTY_DELTA:
            self._note(state, delta, batch)
        start = state.computed
        if rows is _AUTO:  # logits once every known token is computed
            rows = _LAST if start + tokens >= state.known else _NONE
        batch.shares.append(Share(state, start, tokens + drafts, drafts, rows))

    def _note(self, state: RequestState, delta: Delta, batch: Batch) -> None:
        """Add what the device must learn of a request's pages."""
        for write in delta.writes:
            batch.writes.append((state, write))
        if delta.copies:
            batch.copies.extend(delta.copies)
        if self.wants_fresh:
            batch.fresh.extend(self._fresh(state, delta))

    def _fresh(self, state: RequestState, delta: Delta) -> list[tuple[RequestState, int, int]]:
        """List the pages of a grant that were not adopted with a prefix."""
        adopted = -(-state.computed // self.page_tokens)
        return [
            (state, write.group, page)
            for write in delta.writes
            for index, page in enumerate(write.pages, write.first)
            if index >= adopted and page != NULL_PAGE
        ]

    def _admit(self, state: RequestState, item: Item, batch: Batch) -> Delta | None:
        """Give a waiting request its prefix, pages and a slot; None if it must wait on."""
        while True:
            hit = self.cache.match(state.prefix, min(len(state.tokens) - 1, state.unread))
            if hit.ready < state.module_tokens:
                batch.lacking.append(state)
                return None
            need = self._whole_pages(hit.ready + min(item.tokens, state.known - hit.ready))
            result = self.cache.allocate(state.uid, state.prefix, need, hit)
            if isinstance(result, Delta):
                break
            if not self._make_room(state, result, batch):
                return None
        self.view.waiting.remove(state)
        self.view.admitted[state.uid] = state
        self.view.forget(state)
        state.status = Status.RUNNING
        state.slot = self.slots.take()
        state.admission += 1
        state.computed = hit.ready
        state.committed = hit.ready - hit.ready % self.page_tokens
        state.opened = len(state.tokens)
        self.declarer.plan_next(state)
        state.granted = need
        if state.queued_s is None:
            state.queued_s = self.view.now - state.arrival
        if state.cached_tokens < 0:
            reused = min(hit.ready, state.prompt_tokens) - state.module_misses
            state.cached_tokens = max(0, reused)
            self.stats.prompt_tokens += state.prompt_tokens
            self.stats.cached_tokens += state.cached_tokens
        state.recount()
        self.table.seat(state)
        batch.admitted.append(state)
        return result

    def _whole_pages(self, tokens: int) -> int:
        """Round up: what is granted is used before the cache is asked again."""
        return -(-tokens // self.page_tokens) * self.page_tokens

    def _grow(self, state: RequestState, need: int, ahead: int, batch: Batch) -> Delta | None:
        """Give a running request pages for `ahead` tokens, or where they are short for `need`."""
        while True:
            granted = self._whole_pages(need) if self._tight else ahead
            result = self.cache.allocate(state.uid, state.prefix, granted)
            if isinstance(result, Delta):
                state.granted = granted
                return result
            if not self._make_room(state, result, batch):
                return None

    def _ahead(self, need: Int64, last: Int64) -> Int64:
        """Return the tokens to ask for where one more makes it `need`, of at most `last`; [B].

        That is up to a multiple of the grain, so that not all who begin together ask together.
        """
        size = self.page_tokens
        whole = np.minimum(need + -need % self.grain, last + -last % size)
        most: Int64 = np.maximum(need + -need % size, whole)
        return most

    def _surplus(self) -> int:
        """Return the pages that were granted ahead, of which no step knows."""
        table, order = self.table, self.table.order
        tokens = table.granted[order] - table.computed[order] - 1
        return int(tokens.clip(0).sum()) // self.page_tokens

    def _take_back(self, batch: Batch) -> None:
        """Take the surplus from everybody, and grant nothing more ahead in this step."""
        self._tight = True
        order, table = self.table.order, self.table
        placed = {share.state.slot: share.start + share.tokens for share in batch.shares}
        for slot in order[table.granted[order] > table.computed[order] + 1].tolist():
            state = table.states[slot]
            assert state is not None, "a slot in order of admission belongs to somebody"
            keep = self._whole_pages(max(state.computed + 1, placed.get(slot, 0)))
            if keep < state.granted:
                state.granted = keep
                self.cache.shrink(state.uid, keep, 0)
                batch.take_back(state, keep // self.page_tokens)

    def _make_room(self, state: RequestState, result: Wait | NoSpace, batch: Batch) -> bool:
        """Find pages for `state`. False: its item is dropped from this step."""
        if not self._tight and self.grain > self.page_tokens:
            short = result.short if isinstance(result, NoSpace) else 0
            if state.slot >= 0 or 0 < short <= self._surplus():
                self._take_back(batch)
                return True
        if isinstance(result, Wait):
            self.stats.waits += 1
            if result.ticket < 0 and self.cache.is_coming(result.ticket):
                state.transfer = result.ticket
                self.transfers[state.uid] = state
            return False
        victim = self.scheduler.victim(self.view, state, result)
        if victim is None:
            return False
        how = victim if isinstance(victim, Preemption) else Preemption(victim, cause="no_space")
        victim = how.request
        assert isinstance(victim, RequestState)
        if victim.status is not Status.RUNNING:
            self._broken(f"request {victim.uid} is a victim, but does not run")
        batch.drop(victim)
        self.preempt(victim, how.cause, how.mode)
        return victim is not state

    def end_transfers(self) -> None:
        """Make those ready again for whom a tier brings nothing more."""
        for state in list(self.transfers.values()):
            if not self.cache.is_coming(state.transfer):
                state.transfer = 0
                del self.transfers[state.uid]

    def preempt(self, state: RequestState, cause: str, mode: PreemptMode = "recompute") -> None:
        """Take slot and pages of a running request; it will be recomputed or swapped in."""
        self.declarer.declare_rest(state, self.newest_step)
        swaps = mode == "swap"
        if swaps and self.cache.no_swap:
            self._broken(f"it preempts by swap, and {self.cache.no_swap}")
        swaps = swaps and self.cache.swap(state.uid, state.computed, self.newest_step)
        self.cache.free(state.uid, self.newest_step)
        self.slots.release(state.slot, self.newest_step)
        del self.view.admitted[state.uid]
        self.table.vacate(state)
        self._dropped.add(state.uid)
        state.preempted()
        self.view.waiting.put_back(state)
        self.scheduler.on_wait(state)
        self.stats.preempted(cause, by_swap=swaps)

    def release(self, state: RequestState, *, forget: bool = False) -> None:
        """Take slot and pages of a request that ends, whatever its status."""
        if state.status is Status.RUNNING:
            self.cache.free(state.uid, self.newest_step, forget=forget)
            self.slots.release(state.slot, self.newest_step)
            del self.view.admitted[state.uid]
            self.table.vacate(state)
        elif state.status is Status.WAITING:
            self.view.waiting.remove(state)
            self.transfers.pop(state.uid, None)
            self.cache.withdraw(state.uid)
        self.view.forget(state)
        state.status = Status.FINISHED
        state.slot = -1


def _nano_batches(plan: Plan, columns: Columns) -> Int32:
    """Return the number of each request's nano-batch [B]; nothing if no two are left."""
    planned = [*plan.one_each, *(item.request for item in plan.items)]
    numbers = np.repeat(np.arange(len(plan.nano_batches)), plan.nano_batches).tolist()
    of = {request.uid: number for request, number in zip(planned, numbers, strict=True)}
    found = int32([of[uid] for uid in columns.uids.tolist()])
    return found if len(set(found.tolist())) > 1 else found[:0]
