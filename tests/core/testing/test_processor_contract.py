"""The contract of logits processors accepts a plain one and rejects each broken promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from camshaft.contracts.sampling import LogitsProcessor, RowContext, Sampled, SamplerSpec
from camshaft.testing.processor import LogitsProcessorContract
from camshaft.testing.rejects import failures
from camshaft.testing.sampling_play import params

if TYPE_CHECKING:
    from camshaft.request import SamplingParams
    from camshaft.step import Admissions


class NotTwice(LogitsProcessor):
    """Forbids the last output id."""

    def attach(self, spec: SamplerSpec) -> None:
        self.wanted = np.zeros(spec.slots, dtype=np.bool_)
        self.last = torch.full((spec.slots,), -1, dtype=torch.int64)

    def admit(self, admissions: Admissions) -> None:
        for place, slot in enumerate(admissions.slots.tolist()):
            self.wanted[slot] = admissions.presence[place] != 0
            outputs = admissions.outputs[place].tolist()
            self.last[slot] = outputs[-1] if outputs else -1

    def active(self, rows: RowContext) -> bool:
        return bool(self.wanted[rows.host_slots].any())

    def before(self, rows: RowContext) -> torch.Tensor:
        """Return the id before each row [Q]."""
        known = torch.cat((self.last[rows.slots][:, None], rows.drafts), dim=1)
        return known[rows.row_request, rows.offsets]

    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        last = self.before(rows)
        wanted = torch.from_numpy(self.wanted[rows.host_slots])[rows.row_request] & (last >= 0)
        index = torch.arange(len(logits))
        ban = torch.where(wanted, -torch.inf, 0.0)
        logits.index_put_((index, last.clamp(min=0)), ban, accumulate=True)

    def observe(self, sampled: Sampled, rows: RowContext) -> None:
        self.last[rows.slots] = sampled.tokens.gather(1, sampled.counts[:, None] - 1)[:, 0]


class DoesNothing(NotTwice):
    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        pass


class AlwaysBusy(NotTwice):
    def active(self, rows: RowContext) -> bool:
        return True


class TouchesAllRows(NotTwice):
    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        super().apply(logits, rows)
        logits[:, 0] = -torch.inf


class MixesRows(NotTwice):
    def before(self, rows: RowContext) -> torch.Tensor:
        return super().before(rows).roll(1)


class OverlooksDrafts(NotTwice):
    def before(self, rows: RowContext) -> torch.Tensor:
        return self.last[rows.slots][rows.row_request]


class BelievesAllDrafts(NotTwice):
    def observe(self, sampled: Sampled, rows: RowContext) -> None:
        self.last[rows.slots] = sampled.tokens[:, -1]


class StartsAnew(NotTwice):
    def admit(self, admissions: Admissions) -> None:
        super().admit(admissions)
        self.last[torch.from_numpy(admissions.slots).long()] = -1


class KeepsTheLast(NotTwice):
    def admit(self, admissions: Admissions) -> None:
        old = self.last.clone()
        super().admit(admissions)
        for place, slot in enumerate(admissions.slots.tolist()):
            if not len(admissions.outputs[place]):
                self.last[slot] = old[slot]


class Revives(NotTwice):
    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        super().apply(logits, rows)
        logits.clamp_(min=-1e30)


class AsksTheDevice(NotTwice):
    def active(self, rows: RowContext) -> bool:
        return super().active(rows) and bool(rows.offsets.min() >= 0)


class Waits(NotTwice):
    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        if int(self.before(rows).max()) >= 0:
            super().apply(logits, rows)


class WaitsForAnIndex(NotTwice):
    def apply(self, logits: torch.Tensor, rows: RowContext) -> None:
        super().apply(logits, rows)
        logits[logits < -1e30] = -torch.inf


BROKEN = {
    DoesNothing: "test_it_changes_some_row",
    AlwaysBusy: "test_requests_that_do_not_ask_cost_and_change_nothing",
    TouchesAllRows: "test_requests_that_do_not_ask_cost_and_change_nothing",
    MixesRows: "test_a_row_does_not_depend_on_its_neighbours",
    OverlooksDrafts: "test_drafts_count_as_outputs_of_the_rows_behind_them",
    BelievesAllDrafts: "test_rejected_drafts_leave_nothing_behind",
    StartsAnew: "test_a_preempted_request_goes_on",
    KeepsTheLast: "test_a_slot_forgets_its_last_request",
    Revives: "test_forbidden_tokens_stay_forbidden",
    AsksTheDevice: "test_whether_it_has_work_is_known_on_the_host",
    Waits: "test_nothing_waits_for_the_device",
    WaitsForAnIndex: "test_nothing_waits_for_the_device",
}


def contract_of(processor: type[NotTwice]) -> type[LogitsProcessorContract]:
    class Contract(LogitsProcessorContract):
        def make(self) -> LogitsProcessor:
            return processor()

        def params(self) -> SamplingParams:
            return params(presence_penalty=1.0)

    return Contract


def test_a_right_processor_is_accepted() -> None:
    assert failures(contract_of(NotTwice)) == []


@pytest.mark.parametrize(("broken", "test"), BROKEN.items())
def test_a_broken_processor_is_rejected(broken: type[NotTwice], test: str) -> None:
    assert failures(contract_of(broken), only=[test]) == [test]
