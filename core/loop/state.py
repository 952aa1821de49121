"""What the loop knows about one request."""

from __future__ import annotations

from enum import Enum
from sys import maxsize
from typing import TYPE_CHECKING

import numpy as np

from ..contracts.cache import Prefix
from . import table
from .modules import runs_of

if TYPE_CHECKING:
    from ..request import FinishReason, Request, SamplingParams


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_RUNNING, _WAITING = Status.RUNNING, Status.WAITING


class _Count:
    """A number in a request's row, as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, state: RequestState, kind: type[RequestState]) -> int:
        return state.row.item(self._place)

    def __set__(self, state: RequestState, value: int) -> None:
        state.row[self._place] = value


class RequestState:
    """A request in the engine; schedulers see it as a `RequestView`.

    Its counts stand in `row`: the row of its slot in the `SlotTable` while it runs, and one of its
    own otherwise. `known` and `computed` are upper bounds while steps are in flight, exact else:

        tokens   [0 ... computed)  launched   [computed ... known)  pending
        known  = prompt + settled outputs + outputs that launched steps will sample

    Attributes:
        computed: Tokens whose keys and values are launched.
        known: See above.
        last_known: The most that `known` can count for: the last output is never computed.
        pending: What `recount` makes of these three.
        granted: Tokens that its pages can hold.
        committed: Tokens that the cache was told of, in whole pages.
        in_flight: Launched steps that hold it and are not settled.
        left: Output tokens that it may still get.
        started: 1 once its first token was settled.
        offset: By what the position of each of its own tokens exceeds the token's index.
        module_tokens: Leading tokens that it finds in the cache before it runs: its modules.
        module_misses: Of these, how many were computed for it.
        module_rounds: How often it was found that the cache lacks some.
        modules_due: Modules that are being computed; until they are, it is not ready.
        on_device: 1 if its slot holds its newest token.
        needs_host: 1 if choosing a token needs the host to have read the last one.
        due: Written tokens at which the cache is told more.
        opened: Tokens that were known when it got its slot.
        unread: Prompt tokens that are computed and whose logits, too, are launched, where their
            logprobs are wanted: the cache may serve no more than these. Endless where they are not,
            and 0 where all of them make a vector.
    """

    computed = _Count(table.COMPUTED)
    known = _Count(table.KNOWN)
    last_known = _Count(table.LAST_KNOWN)
    pending = _Count(table.PENDING)
    granted = _Count(table.GRANTED)
    committed = _Count(table.COMMITTED)
    in_flight = _Count(table.IN_FLIGHT)
    left = _Count(table.LEFT)
    started = _Count(table.STARTED)
    on_device = _Count(table.ON_DEVICE)
    needs_host = _Count(table.NEEDS_HOST)
    due = _Count(table.DUE)

    __slots__ = (
        "admission",
        "arrival",
        "cached_tokens",
        "finish",
        "first_token_s",
        "is_module",
        "max_tokens",
        "module_misses",
        "module_rounds",
        "module_tokens",
        "modules_due",
        "offset",
        "opened",
        "preemptions",
        "prefix",
        "priority",
        "prompt_tokens",
        "queued_s",
        "request",
        "row",
        "seed",
        "slot",
        "status",
        "stop_ids",
        "tenant",
        "tokens",
        "tpot_slo_s",
        "transfer",
        "ttft_slo_s",
        "uid",
        "unread",
    )

    def __init__(
        self,
        uid: int,
        request: Request,
        stop_ids: frozenset[int],
        room: int,
        seed: int,
        positions: int = 0,
    ) -> None:
        """Open a request.

        Args:
            uid: Never reused.
            request: As submitted.
            stop_ids: Ids that end it.
            room: Longest sequence that the engine can hold.
            seed: Of its random numbers.
            positions: Of the model; with modules there are more than tokens.
        """
        self.uid = uid
        self.request = request
        self.arrival = request.arrival
        self.priority = request.priority
        self.ttft_slo_s = request.ttft_slo_s
        self.tpot_slo_s = request.tpot_slo_s
        self.tenant = request.tenant
        self.seed = seed
        self.stop_ids = stop_ids
        self.tokens = list(request.prompt_ids)
        self.prefix = Prefix(
            self.tokens, request.salt, request.adapter, request.priority, request.scope
        )
        self.prompt_tokens = len(self.tokens)
        self.prefix.runs = runs = runs_of(request)
        self.offset = runs[-1].position - runs[-1].first if runs else 0
        self.module_tokens = runs[-1].first if runs else 0
        self.module_misses = self.module_rounds = self.modules_due = 0
        if self.offset:
            room = min(room, positions - self.offset)
        self.max_tokens = min(request.params.max_tokens, max(1, room - self.prompt_tokens))
        self.prefix.most_tokens = min(room, self.prompt_tokens + self.max_tokens)
        self.row = np.zeros(table.WIDTH, dtype=np.int64)
        self.row[table.UID] = uid
        self.known = self.prompt_tokens
        self.last_known = self.prompt_tokens + self.max_tokens - 1
        self.left = self.max_tokens
        self.needs_host = int(request.needs_host_tokens)
        self.unread = 0 if _is_read(request.params) else maxsize
        self.is_module = False
        self.slot = -1
        self.admission = 0
        self.opened = 0
        self.preemptions = 0
        self.cached_tokens = -1
        self.status = Status.WAITING
        self.transfer = 0  # ticket of what a tier is bringing for it, or 0
        self.finish: FinishReason | None = None
        self.first_token_s: float | None = None
        self.queued_s: float | None = None
        self.recount()

    @property
    def outputs(self) -> int:
        """Settled output tokens."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def ready(self) -> bool:
        """Whether it may be planned: nothing of it is in flight, of a preempted one or a tier."""
        if self.status is _RUNNING:
            return self.pending > 0
        return (
            self.status is _WAITING
            and not self.in_flight
            and not self.modules_due
            and not self.transfer
        )

    def recount(self) -> None:
        """Renew `pending` after a change to what it follows from."""
        self.pending = min(self.known, self.last_known) - self.computed

    def preempted(self) -> None:
        """Return to waiting with nothing computed. Tokens in flight will still count."""
        self.status = Status.WAITING
        self.preemptions += 1
        self.computed = self.committed = self.granted = 0
        self.slot = -1
        self.on_device = 0
        self.recount()


def _is_read(params: SamplingParams) -> bool:
    """Return whether every token of the prompt has to be computed for this request."""
    return params.prompt_logprobs is not None or params.pooling in ("mean", "cls")
