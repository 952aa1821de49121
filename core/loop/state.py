"""What the loop knows about one request."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from ..contracts.cache import Prefix

if TYPE_CHECKING:
    from ..request import FinishReason, Request


class Status(Enum):
    """Where a request is."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_RUNNING, _WAITING = Status.RUNNING, Status.WAITING


class RequestState:
    """A request in the engine; schedulers see it as a `RequestView`.

    `known` and `computed` are upper bounds while steps are in flight, exact otherwise:

        tokens   [0 ... computed)  launched   [computed ... known)  pending
        known  = prompt + settled outputs + outputs that launched steps will sample
    """

    __slots__ = (
        "admission",
        "arrival",
        "cached_tokens",
        "committed",
        "computed",
        "device_token",
        "finish",
        "first_token_s",
        "granted",
        "in_flight",
        "known",
        "last_known",
        "max_tokens",
        "pending",
        "preemptions",
        "prefix",
        "priority",
        "prompt_tokens",
        "ready",
        "request",
        "seed",
        "slot",
        "status",
        "stop_ids",
        "tenant",
        "tokens",
        "tpot_slo_s",
        "ttft_slo_s",
        "uid",
    )

    def __init__(
        self, uid: int, request: Request, stop_ids: frozenset[int], room: int, seed: int
    ) -> None:
        """Open a request.

        Args:
            uid: Never reused.
            request: As submitted.
            stop_ids: Ids that end it.
            room: Longest sequence that the engine can hold.
            seed: Of its random numbers.
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
        self.prefix = Prefix(self.tokens, request.salt, request.adapter, request.priority)
        self.prompt_tokens = len(self.tokens)
        self.max_tokens = min(request.params.max_tokens, room - self.prompt_tokens)
        self.last_known = self.prompt_tokens + self.max_tokens - 1
        self.known = self.prompt_tokens
        self.computed = 0
        self.committed = 0
        self.granted = 0
        self.in_flight = 0
        self.slot = -1
        self.admission = 0
        self.preemptions = 0
        self.cached_tokens = -1
        self.device_token = False  # whether the slot holds the newest token
        self.status = Status.WAITING
        self.finish: FinishReason | None = None
        self.first_token_s: float | None = None
        self.pending = 0
        self.ready = False
        self.recount()

    @property
    def outputs(self) -> int:
        """Settled output tokens."""
        return len(self.tokens) - self.prompt_tokens

    def recount(self) -> None:
        """Renew `pending` and `ready` after a change to what they follow from.

        They are read several times for every request and step, and change once. The last token that
        a request may have is never computed; a waiting one is ready once its old steps settled.
        """
        known = self.known if self.known < self.last_known else self.last_known
        self.pending = pending = known - self.computed
        if self.status is _RUNNING:
            self.ready = pending > 0
        else:
            self.ready = self.status is _WAITING and not self.in_flight

    def preempted(self) -> None:
        """Return to waiting with nothing computed. Tokens in flight will still count."""
        self.status = Status.WAITING
        self.preemptions += 1
        self.computed = self.committed = self.granted = 0
        self.slot = -1
        self.device_token = False
        self.recount()
