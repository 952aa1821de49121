"""The engine: requests in, outputs out, up to `depth` steps in flight behind the newest."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ..contracts.scheduler import StepReport
from ..request import FinishReason, Request, RequestOutput
from .admissible import check_request
from .commit import Committer, PlanError
from .declare import Declarer, PendingWrite
from .invariants import check_invariants
from .modules import MOST_ROUNDS, Modules, check_modules
from .mover import Mover
from .observers import Observers
from .pack import pack_step
from .queues import EngineView
from .settle import Settler
from .slots import Slots
from .state import RequestState, Status
from .stats import Stats
from .stops import StopIds
from .table import SlotTable

_MOVES_S = 0.002
"""How often an idle engine looks whether page moves have ended."""
_TRANSFERS_S = 1.0
"""How often it looks after transfers; a cache tells by `CacheSpec.post` when one has ended."""

_NO_SPACE = "no space could be made for this request; give the cache more memory"
_NOT_WHOLE = "no step took all of this text; give the scheduler `chunk_tokens: off`, or more memory"

if TYPE_CHECKING:
    from ..contracts.cache import PoolUsage
    from ..contracts.scheduler import Plan
    from .batch import Batch
    from .parts import EngineParts


class Engine:
    """Runs requests. One thread owns it; `step` does one turn of the loop."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self.stats = Stats()
        self.clock = parts.clock
        self.slots = Slots(parts.limits.max_running)
        self.table = SlotTable(parts.limits.max_running)
        self.stops = StopIds(max(parts.vocab, *parts.eos_ids, 0) + 1)
        self.view = EngineView(
            parts.clock, parts.cache, self.slots, self.table, parts.predictor, parts.page_tokens
        )
        self.declarer = Declarer(parts.cache, self.table, parts.page_tokens)
        self.committer = Committer(
            self.view,
            parts.cache,
            self.slots,
            self.table,
            parts.scheduler,
            parts.limits,
            self.stats,
            self.declarer,
            page_tokens=parts.page_tokens,
            wants_fresh=parts.executor.wants_fresh,
            causal=parts.causal,
        )
        self.settler = Settler(parts.cache, self.table, self.stops, self.stats, self.declarer)
        self.mover = Mover(parts.cache, parts.executor) if parts.cache.has_tiers else None
        self.observers = Observers(parts.observers)
        self.states: dict[str, RequestState] = {}
        self.flying: deque[Batch] = deque()
        self.wake_at: float | None = None
        self._outbox: list[RequestOutput] = []
        self._uids = itertools.count(1)
        self._random = random.Random(parts.entropy)
        self._stuck = 0
        self._modules = Modules(parts.cache, parts.page_tokens)
        self._idle_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do now or later."""
        busy = self.mover is not None and self.mover.is_busy
        return bool(self.states or self.flying or self._outbox or busy)

    def usage(self) -> tuple[PoolUsage, ...]:
        """Return the pages of each pool."""
        return self.parts.cache.usage()

    @property
    def unused_tokens(self) -> int:
        """Tokens that running requests have pages for and have not computed: fragmentation."""
        return int((self.table.granted - self.table.computed).sum())

    def submit(self, request: Request) -> None:
        """Accept a request into the waiting queue.

        Raises:
            RequestError: It cannot run here; nothing has changed.
        """
        self.check(request)
        if not request.arrival:
            request.arrival = self.clock.now()
        params = request.params
        eos = frozenset() if params.ignore_eos else self.parts.eos_ids
        seed = self._random.getrandbits(64) if params.seed is None else params.seed % 2**64
        state = self._open(request, eos | set(params.stop_token_ids), seed)
        self.view.waiting.append(state)
        self.parts.scheduler.on_wait(state)
        self.stats.requests += 1
        self.observers.on_arrival(request)

    def _open(self, request: Request, stop_ids: frozenset[int], seed: int) -> RequestState:
        room, positions = self.parts.room, self.parts.positions or self.parts.room
        state = RequestState(next(self._uids), request, stop_ids, room, seed, positions)
        self.states[request.id] = state
        self.stops.add(stop_ids)
        return state

    def check(self, request: Request) -> None:
        """Refuse what cannot run.

        Raises:
            RequestError: Names the field.
        """
        parts = self.parts
        check_request(
            request,
            vocab=parts.vocab,
            room=parts.room,
            open_ids=self.states,
            causal=parts.causal,
        )
        check_modules(request, parts.page_tokens, parts.positions or parts.room, parts.cache)

    def abort(self, request_id: str, finish: FinishReason = "abort", returned: int = 0) -> None:
        """End a request at once, wherever it is. Unknown ids are ignored: it just ended.

        Args:
            request_id: Which.
            finish: What it counts as; a stop string that was found in its text is a `stop`.
            returned: Output tokens up to and with that stop string; later ones are not cached.
        """
        state = self.states.get(request_id)
        if state is not None:
            self._finish(state, RequestOutput(id=request_id, finish=finish), returned)

    def step(self) -> list[RequestOutput]:
        """Do one turn: launch a step if there is room, settle one if it is time.

        Returns:
            What became known. Requests with `finish` are gone from the engine.
        """
        self.clock.run_due()
        if self.mover is not None:
            self.mover.poll()
            self.committer.end_transfers()
        launched = len(self.flying) <= self.parts.depth and self._launch()
        if self.flying and not (launched and len(self.flying) <= self.parts.depth):
            if not launched:
                self.parts.executor.drain()
            self._settle_oldest()
        if self.mover is not None:
            self._move_pages(self.mover)
        self._note_cache()
        if self.parts.debug:
            check_invariants(self)
        published, self._outbox = self._outbox, []
        return published

    def _move_pages(self, mover: Mover) -> None:
        """End a turn: begin what nothing will be launched with, and say when to look again."""
        mover.push()
        if mover.is_busy and not self.flying and (self.wake_at is not None or not self.states):
            soon = self.clock.now() + _MOVES_S
            self.wake_at = soon if self.wake_at is None else min(self.wake_at, soon)

    def _launch(self) -> bool:
        """Plan, commit and launch a step. False if there was nothing to launch."""
        self.wake_at = None
        if not self.view.running and not self.view.waiting:
            return False
        self.view.steps_in_flight = len(self.flying)
        self.view.turn += 1
        plan = self.committer.checked(self.parts.scheduler.plan(self.view))
        for refusal in plan.refuse:
            state = refusal.request
            assert isinstance(state, RequestState)
            output = RequestOutput(
                id=state.request.id,
                finish="refused",
                message=refusal.reason,
                retry_after_s=refusal.retry_after_s,
            )
            self._finish(state, output)
        if self.mover is not None:
            self._prefetch(plan)
        batch = self.committer.commit(plan, self.committer.newest_step + 1)
        for state in batch.lacking:
            self._begin_modules(state)
        if not len(batch.columns):
            self._nothing_placed(plan)
            return False
        self._stuck = 0
        return self._fly(batch)

    def _prefetch(self, plan: Plan) -> None:
        for state in plan.prefetch:
            assert isinstance(state, RequestState)
            if state.status is Status.WAITING:
                limit = min(len(state.tokens) - 1, state.unread)
                self.parts.cache.prefetch(state.uid, state.prefix, limit)

    def _begin_modules(self, state: RequestState) -> None:
        """Have the modules computed that a request lacks; it is not ready before they are."""
        if state.module_rounds >= MOST_ROUNDS:
            message = (
                f"the modules of the prompt left the cache {MOST_ROUNDS} times before they were "
                "used; give the cache more memory"
            )
            self._finish(state, RequestOutput(id=state.request.id, finish="error", message=message))
            return
        for request in self._modules.lacking(state):
            module = self._open(request, frozenset(), 0)
            module.is_module = True
            module.cached_tokens = 0  # the tokens are counted with those who asked for them
            self.view.waiting.put_back(module)
            self.parts.scheduler.on_wait(module)

    def _end_module(self, waiting: list[RequestState], ended: RequestOutput) -> None:
        """Let those who waited for a module go on, or fail with it."""
        for state in waiting:
            if ended.finish != "length" and state.finish is None:
                output = RequestOutput(
                    id=state.request.id,
                    finish=ended.finish,
                    message=f"a module of the prompt: {ended.message}",
                    retry_after_s=ended.retry_after_s,
                )
                self._finish(state, output)

    def _fly(self, batch: Batch) -> bool:
        """Launch a committed batch and advance the counts of its requests."""
        executor = self.parts.executor
        pending = [one for one in self.declarer.writes if _current(one)]
        batch.writes.extend((one.state, one.write) for one in pending)
        step = pack_step(batch)
        batch.launched_s = self.clock.now()
        if self.mover is not None and (unmoved := self.mover.push()) is not None:
            self._launch_failed(batch, unmoved, forget=True)  # they count on pages of a load
            return False
        try:
            if executor.complete():
                self.flying[-1].done_s = self.clock.now()
            executor.launch(step)
        except Exception as error:  # noqa: BLE001 - a failed step ends its requests, not the engine
            self._launch_failed(batch, error)
            return False
        self.committer.newest_step = batch.step
        self.declarer.writes = []
        self.flying.append(batch)
        self._advance(batch)
        columns = batch.columns
        if np.count_nonzero(self.table.needs_host[columns.slots] * columns.samples):
            self._settle_all_but_newest()
        try:
            executor.sample(batch.step)
        except Exception as error:  # noqa: BLE001 - as above
            self._sample_failed(batch, error)
            return False
        if executor.immediate:
            batch.done_s = self.clock.now()
        self.stats.most_in_flight = max(self.stats.most_in_flight, len(self.flying))
        return True

    def _advance(self, batch: Batch) -> None:
        """Count what was launched; declare pages that prompts fill."""
        columns, table = batch.columns, self.table
        table.advance(columns)
        # what was generated is declared once it is settled
        if np.count_nonzero(columns.on_device) < len(columns):
            written = np.minimum(columns.written, table.read(columns.slots))
            for row in self.declarer.due(columns.slots, written).nonzero()[0].tolist():
                self.declarer.declare(columns.states[row], written.item(row), batch.step)
        self.stats.steps += 1
        self.stats.step_tokens += batch.shape.tokens
        self.stats.nano_steps += len(batch.nano_batch) > 0

    def _launch_failed(self, batch: Batch, error: Exception, *, forget: bool = False) -> None:
        self._end_all(batch, f"the step could not be launched: {error}", forget=forget)

    def _sample_failed(self, batch: Batch, error: Exception) -> None:
        """End the requests of the newest step, whose results nobody will wait for."""
        self.flying.pop()
        self.parts.executor.drain()
        while self.flying:
            self._settle_oldest()
        self._end_all(batch, f"no tokens could be chosen: {error}")
        # what the device still does of this step comes before whatever reuses its pages
        self.parts.cache.fence(batch.step)
        self.slots.fence(batch.step)

    def _end_all(self, batch: Batch, message: str, *, forget: bool = False) -> None:
        self.stats.failed_launches += 1
        self.parts.cache.revoke(batch.step)
        for state in batch.columns.states:
            if state.request.id in self.states:  # an earlier step may have ended it
                output = RequestOutput(id=state.request.id, finish="error", message=message)
                self._finish(state, output, forget=forget)

    def _settle_all_but_newest(self) -> None:
        if len(self.flying) > 1:
            self.stats.host_waits += 1
            self.parts.executor.drain()
        while len(self.flying) > 1:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        batch = self.flying.popleft()
        output = self.parts.executor.wait(batch.step)
        now = self.clock.now()
        settled = self.settler.settle(batch, output, now)
        self._outbox.extend(settled.outputs)
        for one in settled.ended:
            state, failed = self.states[one.id], one.finish == "error"
            self._finish(state, one, 0 if failed else state.outputs, forget=failed)
        self.parts.cache.fence(batch.step)
        self.slots.fence(batch.step)
        done = now if batch.done_s is None else batch.done_s
        report = StepReport(batch.step, batch.shape, done - max(batch.launched_s, self._idle_s))
        self._idle_s = done
        self.parts.scheduler.on_step(report)
        predictor = self.parts.predictor
        if predictor is not None and report.seconds > 0:
            self.stats.predicted(predictor.predict(report.shape) / report.seconds)
            predictor.observe(report.shape, report.seconds)
        self.observers.on_step(report)

    def _finish(
        self, state: RequestState, output: RequestOutput, returned: int = 0, *, forget: bool = False
    ) -> None:
        assert output.finish is not None
        if output.finish != "error":
            self.declarer.declare_rest(state, self.committer.newest_step, returned)
        state.finish = output.finish
        output.cached_tokens = max(0, state.cached_tokens)
        self.committer.release(state, forget=forget)
        del self.states[state.request.id]
        self.stops.remove(state.stop_ids)
        self.parts.scheduler.on_finish(state)
        waiting = self._modules.ended(output.id)
        if waiting is not None:
            self._end_module(waiting, output)
            return
        self.stats.finished[output.finish] += 1
        self.observers.on_finish(state.request, output)
        self._outbox.append(output)

    def _nothing_placed(self, plan: Plan) -> None:
        """Make sure that an engine in which nothing moves does not stay so."""
        self.stats.dropped += 1
        if self.flying or plan.preempt or plan.refuse:
            return
        ready = any(state.ready for state in self.states.values())
        planned = [*plan.one_each, *(item.request for item in plan.items)]
        if not planned:
            self.wake_at = plan.wake_at
            if ready and plan.wake_at is None:
                name = type(self.parts.scheduler).__name__
                raise PlanError(f"scheduler {name}: requests are ready, but its plan is empty.")
            if self.wake_at is None and self.committer.transfers:
                self.wake_at = self.clock.now() + _TRANSFERS_S
            return
        if self.committer.transfers:  # what is coming may be in the way of the others
            if all(one.ready for one in planned):
                self.wake_at = self.clock.now() + _MOVES_S
            return
        self._stuck += 1
        if self._stuck > len(self.states) + 1:
            state = planned[0]
            assert isinstance(state, RequestState)
            self._stuck = 0
            message = _NO_SPACE if self.parts.causal else _NOT_WHOLE
            self._finish(state, RequestOutput(id=state.request.id, finish="error", message=message))

    def fail_all(self, message: str) -> list[RequestOutput]:
        """End every request with an error; the engine is not usable after it."""
        outputs = [
            RequestOutput(id=one, finish="error", message=message) for one in list(self.states)
        ]
        self.states.clear()
        self.flying.clear()
        published, self._outbox = [*self._outbox, *outputs], []
        return published

    def cache_counters(self) -> dict[str, float]:
        """Return what the cache counts; see `KVManager.counters`."""
        return self.parts.cache.counters()

    def reset_cache(self, *, tiers: bool = True) -> int:
        """Drop every cached page that nobody uses; see `KVManager.clear`."""
        pages = self.parts.cache.clear(tiers=tiers)
        self._note_cache()
        return pages

    def sleep(self) -> int:
        """Forget the cache and give the memory of its pages back; return its bytes.

        Call it only without work (`has_work`), and `wake` before the next request. Tiers keep what
        they have.
        """
        self.reset_cache(tiers=False)
        return self.parts.executor.sleep()

    def wake(self) -> None:
        """Take the memory again; see `Executor.wake`."""
        self.parts.executor.wake()

    def _note_cache(self) -> None:
        """Count what the cache did since the last call, and tell of it."""
        events = self.parts.cache.events()
        if events:
            self.stats.note_cache(events)
            self.observers.on_cache(events)

    def close(self) -> None:
        """Stop: in-flight work is abandoned, the device is released."""
        self.observers.on_stop()
        try:
            if self.mover is not None:
                self.mover.finish()
            self.parts.cache.close()
        finally:
            self.parts.executor.close()


def _current(pending: PendingWrite) -> bool:
    state = pending.state
    return state.status is Status.RUNNING and state.admission == pending.admission
