"""The engine: requests in, outputs out, up to `depth` steps in flight behind the newest."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ..contracts.scheduler import StepReport
from ..errors import RequestError
from ..request import FinishReason, Request, RequestOutput
from .commit import Committer, PlanError
from .invariants import check_invariants
from .observers import Observers
from .pack import pack_step
from .queues import EngineView
from .settle import PendingWrite, Settler
from .slots import Slots
from .state import RequestState, Status
from .stats import Stats
from .stops import StopIds
from .table import SlotTable

if TYPE_CHECKING:
    from ..contracts.cache import KVManager, PoolUsage
    from ..contracts.executor import Executor
    from ..contracts.observer import Observer
    from ..contracts.predictor import StepTimePredictor
    from ..contracts.scheduler import Plan, Scheduler, SchedulerLimits
    from .batch import Batch
    from .clock import Clock


@dataclass(slots=True)
class EngineParts:
    """What an engine is composed of.

    Attributes:
        executor: Runs steps.
        cache: Gives pages.
        scheduler: Decides.
        limits: Of the recipe.
        clock: Time.
        page_tokens: Of a manager page.
        room: Longest sequence, prompt and output, that the model and the pools can hold.
        vocab: Ids are below it.
        eos_ids: End a request unless it ignores them.
        depth: Steps in flight behind the newest one.
        predictor: Or None.
        observers: Told what happens.
        debug: Check every invariant after every step.
        entropy: Seeds requests that bring no seed; None draws from the system.
    """

    executor: Executor
    cache: KVManager
    scheduler: Scheduler
    limits: SchedulerLimits
    clock: Clock
    page_tokens: int
    room: int
    vocab: int
    eos_ids: frozenset[int]
    depth: int = 1
    predictor: StepTimePredictor | None = None
    observers: list[Observer] = field(default_factory=list)
    debug: bool = False
    entropy: int | None = None


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
        self.committer = Committer(
            self.view,
            parts.cache,
            self.slots,
            self.table,
            parts.scheduler,
            parts.limits,
            self.stats,
            page_tokens=parts.page_tokens,
            wants_fresh=parts.executor.wants_fresh,
        )
        self.settler = Settler(parts.cache, self.table, self.stops, self.stats, parts.page_tokens)
        self.observers = Observers(parts.observers)
        self.states: dict[str, RequestState] = {}
        self.flying: deque[Batch] = deque()
        self.wake_at: float | None = None
        self._outbox: list[RequestOutput] = []
        self._uids = itertools.count(1)
        self._random = random.Random(parts.entropy)
        self._stuck = 0

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do now or later."""
        return bool(self.states or self.flying or self._outbox)

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
        state = RequestState(
            next(self._uids), request, eos | set(params.stop_token_ids), self.parts.room, seed
        )
        self.states[request.id] = state
        self.stops.add(state.stop_ids)
        self.view.waiting.append(state)
        self.stats.requests += 1
        self.observers.on_arrival(request)

    def check(self, request: Request) -> None:
        """Refuse what cannot run.

        Raises:
            RequestError: Names the field.
        """
        prompt, parts = request.prompt_ids, self.parts
        if request.task != "generate":
            raise RequestError(f"this engine does not do '{request.task}'", param="task")
        if request.id in self.states:
            raise RequestError(f"request id '{request.id}' is in use", param="request_id")
        if not prompt:
            raise RequestError("the prompt is empty", param="prompt")
        if min(prompt) < 0 or max(prompt) >= parts.vocab:
            raise RequestError(
                f"the prompt holds a token id outside 0 to {parts.vocab - 1}", param="prompt"
            )
        params = request.params
        named = (*params.logit_bias, *params.allowed_token_ids, *params.stop_token_ids)
        for token in (*named, *(one for word in params.bad_words for one in word)):
            if not 0 <= token < parts.vocab:
                raise RequestError(
                    f"token id {token} is outside 0 to {parts.vocab - 1}", param="sampling"
                )
        if len(prompt) >= parts.room:
            raise RequestError(
                f"the prompt has {len(prompt)} tokens, and this engine holds sequences of at most "
                f"{parts.room} tokens, one of them generated",
                param="prompt",
                code="context_length_exceeded",
            )

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
        launched = len(self.flying) <= self.parts.depth and self._launch()
        if self.flying and not (launched and len(self.flying) <= self.parts.depth):
            if not launched:
                self.parts.executor.drain()
            self._settle_oldest()
        self._note_cache()
        if self.parts.debug:
            check_invariants(self)
        published, self._outbox = self._outbox, []
        return published

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
        batch = self.committer.commit(plan, self.committer.newest_step + 1)
        if not len(batch.columns):
            self._nothing_placed(plan)
            return False
        self._stuck = 0
        return self._fly(batch)

    def _fly(self, batch: Batch) -> bool:
        """Launch a committed batch and advance the counts of its requests."""
        executor = self.parts.executor
        pending = [one for one in self.settler.writes if _current(one)]
        batch.writes.extend((one.state, one.write) for one in pending)
        step = pack_step(batch)
        batch.launched_s = self.clock.now()
        try:
            executor.launch(step)
        except Exception as error:  # noqa: BLE001 - a failed step ends its requests, not the engine
            self._launch_failed(batch, error)
            return False
        self.committer.newest_step = batch.step
        self.settler.writes = []
        self.flying.append(batch)
        self._advance(batch)
        columns = batch.columns
        if (self.table.needs_host[columns.slots] * columns.samples).any():
            self._settle_all_but_newest()
        try:
            executor.sample(batch.step)
        except Exception as error:  # noqa: BLE001 - as above
            self._sample_failed(batch, error)
            return False
        self.stats.most_in_flight = max(self.stats.most_in_flight, len(self.flying))
        return True

    def _advance(self, batch: Batch) -> None:
        """Count what was launched; declare pages that prompts fill."""
        columns, table = batch.columns, self.table
        table.advance(columns)
        written = np.minimum(columns.written, table.read(columns.slots))
        due = written - table.committed[columns.slots] >= self.parts.page_tokens
        for row in due.nonzero()[0].tolist():
            self.settler.declare(columns.states[row], written.item(row), batch.step)
        self.stats.steps += 1
        self.stats.step_tokens += batch.shape.tokens

    def _launch_failed(self, batch: Batch, error: Exception) -> None:
        self._end_all(batch, f"the step could not be launched: {error}")

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

    def _end_all(self, batch: Batch, message: str) -> None:
        self.stats.failed_launches += 1
        self.parts.cache.revoke(batch.step)
        for state in batch.columns.states:
            if state.request.id in self.states:  # an earlier step may have ended it
                output = RequestOutput(id=state.request.id, finish="error", message=message)
                self._finish(state, output)

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
        report = StepReport(batch.step, batch.shape, now - batch.launched_s)
        self.parts.scheduler.on_step(report)
        if self.parts.predictor is not None:
            self.parts.predictor.observe(report.shape, report.seconds)
        self.observers.on_step(report)

    def _finish(
        self, state: RequestState, output: RequestOutput, returned: int = 0, *, forget: bool = False
    ) -> None:
        assert output.finish is not None
        if returned and state.status is Status.RUNNING:
            self.settler.declare_returned(state, returned, self.committer.newest_step)
        state.finish = output.finish
        output.cached_tokens = max(0, state.cached_tokens)
        self.committer.release(state, forget=forget)
        del self.states[state.request.id]
        self.stops.remove(state.stop_ids)
        self.stats.finished[output.finish] += 1
        self.parts.scheduler.on_finish(state)
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
            return
        self._stuck += 1
        if self._stuck > len(self.states) + 1:
            state = planned[0]
            assert isinstance(state, RequestState)
            self._stuck = 0
            message = "no space could be made for this request; give the cache more memory"
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

    def reset_cache(self) -> int:
        """Drop every cached page that nobody uses; return how many."""
        cache = self.parts.cache
        pages = sum(cache.evict(pool, usage.evictable) for pool, usage in enumerate(cache.usage()))
        self._note_cache()
        return pages

    def _note_cache(self) -> None:
        """Count what the cache did since the last call, and tell of it."""
        events = self.parts.cache.events()
        if events:
            self.stats.note_cache(events)
            self.observers.on_cache(events)

    def close(self) -> None:
        """Stop: in-flight work is abandoned, the device is released."""
        self.observers.on_stop()
        self.parts.executor.close()


def _current(pending: PendingWrite) -> bool:
    state = pending.state
    return state.status is Status.RUNNING and state.admission == pending.admission
