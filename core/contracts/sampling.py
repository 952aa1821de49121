"""Sampler and LogitsProcessor: from logits to tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from ..step import Admissions


@dataclass(frozen=True, slots=True)
class SamplerSpec:
    """What a sampler samples for.

    Attributes:
        vocab: V.
        slots: R. An executor that records steps never admits the last one: it stands for padding
            there, and several rows may share it.
        device: Torch's name.
        max_drafts: K, most draft tokens of a request in a step.
        processors: Extra processors, attached, in the recipe's order. The sampler calls them.
    """

    vocab: int
    slots: int
    device: str
    max_drafts: int = 0
    processors: tuple[LogitsProcessor, ...] = ()


@dataclass(slots=True)
class RowContext:
    """Whose the rows of the logits are. S requests have rows in this step; Q rows in all.

    Right under speculation: a request with K drafts has 1 + K rows, and row `offset` stands after
    its first `offset` drafts.

    Attributes:
        slots: int64 [S] slot of each request.
        row_start: int64 [S + 1] where a request's rows begin.
        row_request: int64 [Q] index into `slots`.
        offsets: int64 [Q] place of the row among its request's rows.
        drafts: int64 [S, K], padded with -1.
        host_slots: [S] the same slots, for questions that need no device.
        host_rows: [S + 1] the same as `row_start`.
    """

    slots: torch.Tensor
    row_start: torch.Tensor
    row_request: torch.Tensor
    offsets: torch.Tensor
    drafts: torch.Tensor
    host_slots: NDArray[np.int32]
    host_rows: NDArray[np.int32]


@dataclass(slots=True)
class DeviceLogprobs:
    """As `LogprobRows`, on the device; `request` indexes the S requests."""

    request: torch.Tensor
    offset: torch.Tensor
    chosen: torch.Tensor
    rank: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True)
class Sampled:
    """Chosen tokens, on the device.

    Attributes:
        tokens: int64 [S, 1 + K], valid up to `counts`.
        counts: int64 [S], 1 plus the accepted drafts.
        finite: bool [S].
        logprobs: Or None.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    finite: torch.Tensor
    logprobs: DeviceLogprobs | None


@dataclass(slots=True)
class RecordedChoice:
    """What a recorded graph chooses, a token for each of B rows, on the device.

    Attributes:
        tokens: int64 [B]; 0 where `finite` is false.
        finite: bool [B].
    """

    tokens: torch.Tensor
    finite: torch.Tensor


class LogitsProcessor(ABC):
    """Changes logits by row. Constructed as `Processor(settings)`; then `attach` once.

    Keeps its state by slot. Decides from host arrays whether it has work, so that a step without
    work costs nothing, and never reads the device.
    """

    @abstractmethod
    def attach(self, spec: SamplerSpec) -> None:
        """Allocate state for `spec.slots` slots."""

    @abstractmethod
    def admit(self, admissions: Admissions) -> None:
        """Set the state of slots that change hands. What they held before is void."""

    @abstractmethod
    def active(self, rows: RowContext) -> bool:
        """Return whether any of these rows needs this processor. Host only."""

    @abstractmethod
    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        """Change float32 logits [Q, V] in place. Forbidden tokens become minus infinity."""

    def observe(self, sampled: Sampled, rows: RowContext) -> None:  # noqa: B027 - optional
        """Learn the tokens that were chosen, on the device."""


class Sampler(ABC):
    """Chooses tokens. Constructed as `Sampler(settings, spec)`.

    Order of processing, fixed: grammar mask, allowed ids, logit bias, penalties, bad words, stop
    ids before `min_tokens`, extra processors in recipe order; then temperature, top-k, top-p,
    min-p; then the choice. Logprobs are of the raw logits. A row's choice depends only on its
    logits, its slot's parameters, its seed and the number of tokens its request produced, never on
    other rows.
    """

    @abstractmethod
    def admit(self, admissions: Admissions) -> None:
        """Set the parameters of slots that change hands."""

    @abstractmethod
    def sample(self, logits: torch.Tensor, rows: RowContext, masks: Any | None) -> Sampled:  # noqa: ANN401
        """Choose, and verify drafts.

        Args:
            logits: float32 [Q, V]; may be overwritten.
            rows: Whose they are.
            masks: int32 [Q, ceil(V / 32)] bits of allowed tokens on the device, or None.

        Returns:
            Tokens. A request whose rows are not finite is reported by `finite` and gets token 0.
        """

    @abstractmethod
    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor, most: int
    ) -> DeviceLogprobs:
        """Return the logprobs of given tokens, as `sample` does those of the tokens it chooses.

        Args:
            logits: float32 [N, V], not changed.
            tokens: int64 [N].
            wanted: int64 [N], how many alternatives.
            most: The largest of these.

        Returns:
            With `request` counting the rows, and `offset` 0. NaN for logits that are not finite.
        """

    def recordable(self, slots: NDArray[np.int32]) -> Hashable | None:
        """Return which recorded form chooses for these slots, with one row each.

        Asked for every step, on the host: it has a few microseconds. A form that suits
        them need not be the least. The caller sees to grammars, which come as masks.

        Args:
            slots: [B] of admitted slots.

        Returns:
            The `key` of `record`, or None where only `sample` will do.
        """
        del slots
        return None

    def record(self, key: Hashable, logits: torch.Tensor, slots: torch.Tensor) -> RecordedChoice:
        """Choose as `sample` does, in work that can be recorded and replayed.

        Called while a graph is recorded, before that to warm up, and in steps without a graph.
        A graph is replayed for other slots and logits in the same tensors: nothing is known about
        the slots here: their parameters are read on the device, and what was chosen is noted there.

        Args:
            key: Of `recordable`.
            logits: [B, V] of the model's head, in its dtype; not changed.
            slots: int64 [B], each once, but for padding.
        """
        raise NotImplementedError
