"""What every logits processor must hold. Subclass `LogitsProcessorContract`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.sampling import LogitsProcessor, RowContext, Sampled, SamplerSpec
from .no_waits import NoWaits
from .sampling_play import Ask, admit, params, row_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..request import SamplingParams

OUTPUTS = (4, 5, 4, 6, 4, 5)
"""What the tested requests choose, one by one."""


class _HostOnly:
    """Stands where a tensor would be, in a question that must not need one."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"`active` used a device tensor: {name}")


class LogitsProcessorContract:
    """Inherit the tests; implement `make` and `params`.

    Attributes:
        vocab: V of the tests, at least 10.
        always_on: Set it for a processor that no sampling parameter can leave without work.
    """

    vocab = 40
    always_on = False

    def make(self) -> LogitsProcessor:
        """Return a new processor, not attached."""
        raise NotImplementedError

    def params(self) -> SamplingParams:
        """Return parameters of a request that the processor works on.

        With prompt (1, 2, 3) and outputs from `OUTPUTS`, stop ids (4, 7): some logit must change.
        """
        raise NotImplementedError

    def attached(self) -> LogitsProcessor:
        """Return a new processor with 4 slots."""
        processor = self.make()
        processor.attach(SamplerSpec(self.vocab, 4, "cpu", 3))
        return processor

    def ask(self, slot: int, outputs: Sequence[int] = ()) -> Ask:
        """Return a request that has something to be done."""
        return Ask(slot, self.params(), 0, (1, 2, 3), tuple(outputs), (4, 7))

    def logits(self, rows: int, seed: int = 0) -> torch.Tensor:
        """Return float32 [rows, V], equal rows."""
        rng = np.random.default_rng(seed)
        row = torch.tensor(rng.normal(0, 2, self.vocab), dtype=torch.float32)
        return row.repeat(rows, 1)

    def applied(self, processor: LogitsProcessor, rows: RowContext, seed: int = 0) -> torch.Tensor:
        """Return what the processor makes of equal rows."""
        logits = self.logits(len(rows.row_request), seed)
        if processor.active(rows):
            processor.apply(logits, rows)
        return logits

    def after(self, outputs: Sequence[int], slot: int = 0) -> torch.Tensor:
        """Return a row [V] of a request that chose `outputs` one by one."""
        processor = self.attached()
        processor.admit(admit(self.ask(slot)))
        for token in outputs:
            observe(processor, [slot], [[token]])
        return self.applied(processor, row_context([slot]))[0]

    def test_it_changes_some_row(self) -> None:
        """Else the other tests say nothing."""
        before = self.logits(1)[0]
        rows = [self.after(OUTPUTS[:count]) for count in range(len(OUTPUTS) + 1)]
        assert any(not torch.equal(row, before) for row in rows)

    def test_requests_that_do_not_ask_cost_and_change_nothing(self) -> None:
        """Alone there is nothing to do; beside others their rows stay as they are, bit by bit."""
        if self.always_on:
            return
        processor = self.attached()
        processor.admit(admit(Ask(0, params()), self.ask(1, OUTPUTS), Ask(2, params())))
        assert not processor.active(row_context([0, 2]))
        mixed = self.applied(processor, row_context([0, 1, 2]))
        assert torch.equal(mixed[[0, 2]], self.logits(2))

    def test_a_row_does_not_depend_on_its_neighbours(self) -> None:
        """In any order, and alone."""
        histories = {0: (), 1: OUTPUTS[:2], 3: OUTPUTS}
        processor = self.attached()
        processor.admit(admit(*(self.ask(*one) for one in histories.items())))
        alone = {slot: self.applied(processor, row_context([slot]))[0] for slot in histories}
        for order in ([0, 1, 3], [3, 0, 1], [1, 3]):
            together = self.applied(processor, row_context(order))
            for row, slot in zip(together, order, strict=True):
                assert torch.equal(row, alone[slot]), (order, slot)

    def test_drafts_count_as_outputs_of_the_rows_behind_them(self) -> None:
        """Row i of a request with drafts is its row after i tokens without any."""
        for done in range(3):
            processor = self.attached()
            asks = (self.ask(0, OUTPUTS[:done]), self.ask(1), self.ask(2, OUTPUTS[:done]))
            processor.admit(admit(*asks))
            drafts = list(OUTPUTS[done : done + 3])
            rows = self.applied(
                processor, row_context([0, 1, 2], [drafts, [], drafts[:1]], max_drafts=3)
            )
            assert len(rows) == 7
            wanted = [*range(done, done + 4), 0, done, done + 1]
            for row, count in zip(rows, wanted, strict=True):
                assert torch.equal(row, self.after(OUTPUTS[:count])), (done, count)

    def test_rejected_drafts_leave_nothing_behind(self) -> None:
        """Only the first `counts` tokens were chosen."""
        processor = self.attached()
        processor.admit(admit(self.ask(0), self.ask(1)))
        drafts = [[4, 9, 8], [9, 8, 4]]
        tokens = [[4, 5, 0, 0], [4, 0, 0, 0]]
        rows = row_context([0, 1], drafts, max_drafts=3)
        processor.observe(sampled(tokens, [2, 1]), rows)
        found = self.applied(processor, row_context([0, 1]))
        assert torch.equal(found[0], self.after([4, 5]))
        assert torch.equal(found[1], self.after([4]))

    def test_a_preempted_request_goes_on(self) -> None:
        """Admission with outputs is the same as having chosen them here."""
        for count in range(len(OUTPUTS) + 1):
            processor = self.attached()
            processor.admit(admit(self.ask(3, OUTPUTS[:count])))
            row = self.applied(processor, row_context([3]))[0]
            assert torch.equal(row, self.after(OUTPUTS[:count])), count

    def test_a_slot_forgets_its_last_request(self) -> None:
        """What it held is void, whoever comes next."""
        processor = self.attached()
        processor.admit(admit(self.ask(0, OUTPUTS), self.ask(1, OUTPUTS)))
        observe(processor, [0, 1], [[4], [5]])
        processor.admit(admit(self.ask(0), Ask(1, params())))
        rows = self.applied(processor, row_context([0, 1]))
        assert torch.equal(rows[0], self.after([]))
        if not self.always_on:
            assert torch.equal(rows[1], self.logits(1)[0])

    def test_forbidden_tokens_stay_forbidden(self) -> None:
        """A processor before it had its reasons. Nor is any logit made NaN."""
        for count in range(len(OUTPUTS) + 1):
            processor = self.attached()
            processor.admit(admit(self.ask(0, OUTPUTS[:count])))
            logits = self.logits(1)
            logits[0, ::2] = -torch.inf
            if processor.active(row_context([0])):
                processor.apply(logits, row_context([0]))
            assert (logits[0, ::2] == -torch.inf).all()
            assert not logits.isnan().any()

    def test_whether_it_has_work_is_known_on_the_host(self) -> None:
        """`active` has the host arrays; a device tensor would make it wait."""
        processor = self.attached()
        processor.admit(admit(self.ask(0)))
        rows = row_context([0])
        nothing: torch.Tensor = _HostOnly()  # type: ignore[assignment]
        hidden = RowContext(
            nothing, nothing, nothing, nothing, nothing, rows.host_slots, rows.host_rows
        )
        assert processor.active(hidden) is True

    def test_nothing_waits_for_the_device(self) -> None:
        """Admission, application and observation only launch work."""
        processor = self.attached()
        admissions = admit(self.ask(0, OUTPUTS), self.ask(1))
        rows = row_context([0, 1], [[4, 5], []], max_drafts=3)
        logits, chosen = self.logits(4), sampled([[4, 5, 6, 0], [4, 0, 0, 0]], [3, 1])
        with NoWaits():
            processor.admit(admissions)
            processor.apply(logits, rows)
            processor.observe(chosen, rows)


def sampled(tokens: Sequence[Sequence[int]], counts: Sequence[int]) -> Sampled:
    """Return what a sampler chose: tokens [S][1 + K], of which `counts` [S] are valid."""
    finite = torch.ones(len(counts), dtype=torch.bool)
    return Sampled(torch.tensor(tokens), torch.tensor(counts), finite, None)


def observe(
    processor: LogitsProcessor, slots: Sequence[int], tokens: Sequence[Sequence[int]]
) -> None:
    """Tell the processor that each of `slots` chose one token."""
    processor.observe(sampled(tokens, [1] * len(slots)), row_context(slots))
