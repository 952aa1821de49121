"""Scheduler: who runs in the next step, and with how many tokens. It decides; the core acts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

    from .cache import NoSpace, PoolUsage, SwapCost
    from .predictor import StepShape


class Rows(IntEnum):
    """Which positions of an item get logits. `AUTO` means `LAST` once all tokens are computed."""

    AUTO = 0
    NONE = 1
    LAST = 2
    DRAFTS = 3
    ALL = 4


PreemptMode = Literal["recompute", "swap"]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of the recipe that every scheduler honours.

    Attributes:
        step_tokens: Most tokens in a step.
        max_running: Most requests that hold a slot.
    """

    step_tokens: int
    max_running: int


class RequestView(Protocol):
    """What a scheduler may know about a request. Read-only; counts include work in flight.

    Attributes:
        uid: Never reused.
        arrival: Seconds on the engine's clock.
        priority: Lower is more urgent.
        ttft_slo_s: Wanted seconds to the first token, or None.
        tpot_slo_s: Wanted seconds per later token, or None.
        tenant: Who asks.
        prompt_tokens: Length of the prompt.
        max_tokens: Most tokens it may generate.
        known: Tokens that exist: prompt and outputs, an upper bound while steps are in flight.
        computed: Of these, those whose keys and values are launched.
        pending: `known - computed`: how many tokens an item may hold. 1 while decoding.
        outputs: Settled output tokens.
        in_flight: Launched steps that hold it and are not settled.
        preemptions: How often it was preempted.
        ready: Whether it may be planned now. A preempted request is not until its steps settled,
            and one with nothing pending never is.
        first_token_s: When its first token was settled, or None.
        is_module: Whether it computes a module of other requests, which are not ready before it
            has ended: who runs a closed batch runs this beside it.
    """

    @property
    def uid(self) -> int: ...  # noqa: D102
    @property
    def arrival(self) -> float: ...  # noqa: D102
    @property
    def priority(self) -> int: ...  # noqa: D102
    @property
    def ttft_slo_s(self) -> float | None: ...  # noqa: D102
    @property
    def tpot_slo_s(self) -> float | None: ...  # noqa: D102
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> int: ...  # noqa: D102
    @property
    def max_tokens(self) -> int: ...  # noqa: D102
    @property
    def known(self) -> int: ...  # noqa: D102
    @property
    def computed(self) -> int: ...  # noqa: D102
    @property
    def pending(self) -> int: ...  # noqa: D102
    @property
    def outputs(self) -> int: ...  # noqa: D102
    @property
    def in_flight(self) -> int: ...  # noqa: D102
    @property
    def preemptions(self) -> int: ...  # noqa: D102
    @property
    def ready(self) -> bool: ...  # noqa: D102
    @property
    def first_token_s(self) -> float | None: ...  # noqa: D102
    @property
    def is_module(self) -> bool: ...  # noqa: D102


class View(Protocol):
    """The engine as a scheduler sees it, at one moment. Read-only.

    Attributes:
        now: Seconds on the engine's clock.
        waiting: Requests without a slot: preempted ones and modules first, then by arrival. `in`
            is cheap.
        running: Requests with a slot, in order of admission.
        one_pending: Those of `running` with one pending token: the decodes, mostly. For
            `Plan.one_each`; asking for it and slicing it cost next to nothing.
        more_pending: Those with more: prompts that are not computed yet.
        free_slots: Slots that can be given out in this step.
        steps_in_flight: Launched and not settled.
        has_tiers: Whether `Plan.prefetch` has an effect.
    """

    @property
    def now(self) -> float: ...  # noqa: D102
    @property
    def waiting(self) -> Collection[RequestView]: ...  # noqa: D102
    @property
    def running(self) -> Collection[RequestView]: ...  # noqa: D102
    @property
    def one_pending(self) -> Sequence[RequestView]: ...  # noqa: D102
    @property
    def more_pending(self) -> Collection[RequestView]: ...  # noqa: D102
    @property
    def free_slots(self) -> int: ...  # noqa: D102
    @property
    def steps_in_flight(self) -> int: ...  # noqa: D102
    @property
    def has_tiers(self) -> bool: ...  # noqa: D102

    def usage(self) -> tuple[PoolUsage, ...]:
        """Return the pages of each pool."""
        ...

    def cached_tokens(self, request: RequestView) -> int:
        """Return prompt tokens that the cache would serve. Memoised until the cache changes."""
        ...

    def next_page(self, request: RequestView) -> Hashable | None:
        """Name the page that a request would compute next; None if it has less than a page left.

        Requests with equal names would compute the same keys and values: of two in one step, the
        second can find the page in the cache one step later.
        """
        ...

    def shape(self, one_each: Sequence[RequestView]) -> StepShape:
        """Return what a step with a token of each would hold; `one_pending` costs next to nothing.

        For `predict`: what prompts add to it is for the caller to count.
        """
        ...

    def predict(self, shape: StepShape) -> float:
        """Return the expected seconds of a step, 0 when no predictor is chosen."""
        ...

    def swap_cost(self, request: RequestView) -> SwapCost | None:
        """Return what it takes to preempt a running request by swap; None if that cannot be."""
        ...


class Item(NamedTuple):
    """A share of a step.

    Attributes:
        request: From the view.
        tokens: How many of its pending tokens to compute, at least 1.
        drafts: Draft tokens to add after them; only when all pending tokens are computed.
        rows: Which positions get logits.
    """

    request: RequestView
    tokens: int
    drafts: int = 0
    rows: Rows = Rows.AUTO


class Refusal(NamedTuple):
    """End a waiting request unserved; `retry_after_s` None means that it never will fit."""

    request: RequestView
    reason: str
    retry_after_s: float | None = None


class Preemption(NamedTuple):
    """Take a running request's slot and pages; it waits and is recomputed or swapped in later.

    Attributes:
        request: From the view.
        mode: `swap` has the cache keep a copy of all that was computed, an error where
            `KVManager.no_swap` says that it cannot. Where there is no room for the copy now, it is
            counted as `recompute`. With that, too, the cache serves what it still has.
        cause: What it is counted as.
    """

    request: RequestView
    mode: PreemptMode = "recompute"
    cause: str = "planned"


@dataclass(slots=True)
class Plan:
    """A step, decided.

    The core finds space for `one_each`, then for `items`, in their order. No request twice.

    Attributes:
        items: Requests with their number of tokens.
        one_each: Requests with one token each: short for an `Item(request, 1)` before all others.
            `View.one_pending` of this call, or a slice of it, is checked and placed as a whole,
            where a thousand items cost a thousand times as much. Any other sequence is allowed.
        preempt: Done before the items.
        refuse: Waiting requests to turn away.
        prefetch: Waiting requests whose tiered pages should be brought nearer: each once, when its
            turn is near.
        nano_batches: Sizes, in items, of parts that run side by side where the executor can: of
            `one_each` and then of `items`, 1 at least, all of them. Empty means one batch. It
            changes when things are computed, never what.
        wake_at: With nobody planned although requests are ready: when to ask again, engine's clock.
    """

    items: list[Item] = field(default_factory=list)
    one_each: Sequence[RequestView] = ()
    preempt: list[Preemption] = field(default_factory=list)
    refuse: list[Refusal] = field(default_factory=list)
    prefetch: list[RequestView] = field(default_factory=list)
    nano_batches: tuple[int, ...] = ()
    wake_at: float | None = None


class StepReport(NamedTuple):
    """A settled step, for schedulers and predictors.

    Attributes:
        step: Its id.
        shape: What it held.
        seconds: That it took the engine: from its launch, or from the end of the step before it
            if that came later, to its own end.
    """

    step: int
    shape: StepShape
    seconds: float


class Scheduler(ABC):
    """Plans steps. Constructed as `Scheduler(settings, limits)`.

    Called from the engine's thread, on the hot path: no I/O, no locks. The core commits a plan in
    order: it matches prefixes, finds pages, asks `victim` when a pool is short, and drops an item
    that cannot be placed. It owns slots, pages, overlap and finishing, so that a plan may be
    poor but never corrupt. A plan that breaks the rules below is an error that names the scheduler:
    items are ready requests of the view, without repeats; `1 <= tokens <= pending`; the tokens and
    drafts of all items are at most `limits.step_tokens`; waiting requests planned fit `free_slots`.

    Attributes:
        cuts_steps: Plans may have nano-batches, whose parts need memory of their own.
    """

    cuts_steps: bool = False

    @classmethod
    def supports(cls, settings: object, *, predicts: bool, no_swap: str = "") -> list[str]:
        """Return why these settings cannot run, nothing if they can.

        Args:
            settings: Of this component.
            predicts: Whether the recipe has a predictor for `View.predict`.
            no_swap: Of the recipe's `KVManager`.
        """
        return []

    @abstractmethod
    def plan(self, view: View) -> Plan:
        """Decide the next step. Must not change the view.

        An empty plan is allowed while something is in flight or nothing is ready. When requests
        are ready and nothing is in flight, a plan without requests, preemption or refusal must say
        `wake_at`, or it is an error.
        """

    @abstractmethod
    def victim(
        self, view: View, requester: RequestView, need: NoSpace
    ) -> RequestView | Preemption | None:
        """Choose a running request to preempt so that `requester` finds pages.

        It is computed again, unless a `Preemption` says how else, and what it is counted as.
        May return the requester itself, which then waits. None drops the requester's item from
        this step. Must not return an urgent request for a less urgent one for ever: among the
        running requests at least one must always be safe, or nobody would finish.
        """

    def on_wait(self, request: RequestView) -> None:  # noqa: B027 - optional
        """Note a request that begins to wait: it came, or was preempted and may not be ready yet.

        For schedulers that keep an order of their own. It waits while it is in `View.waiting`.
        """

    def on_step(self, report: StepReport) -> None:  # noqa: B027 - optional
        """Learn from a settled step."""

    def on_finish(self, request: RequestView) -> None:  # noqa: B027 - optional
        """Forget a request that ended for any reason."""
