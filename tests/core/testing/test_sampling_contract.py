"""The contract of samplers accepts a plain one and rejects each broken promise."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from camshaft.contracts.sampling import RowContext, Sampled, Sampler, SamplerSpec
from camshaft.testing.rejects import failures
from camshaft.testing.row_by_row import RowByRow, Slot, unpack
from camshaft.testing.sampling import SamplerContract

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from camshaft.step import Admissions
    from camshaft.testing.row_by_row import Row


class DrawsByPlace(RowByRow):
    def uniform(self, seed: int, index: int, place: int) -> float:
        return super().uniform(seed + place, index, place)


class DrawsByNeighbours(RowByRow):
    def sample(self, logits: torch.Tensor, rows: RowContext, masks: torch.Tensor | None) -> Sampled:
        self.step = int(rows.host_slots.sum())
        return super().sample(logits, rows, masks)

    def uniform(self, seed: int, index: int, place: int) -> float:
        return super().uniform(seed + self.step, index, place)


class OneSeedForAll(RowByRow):
    def uniform(self, seed: int, index: int, place: int) -> float:
        return super().uniform(0, index, place)


class OneNumberForever(RowByRow):
    def uniform(self, seed: int, index: int, place: int) -> float:
        return super().uniform(seed, 0, place)


class CountsSteps(RowByRow):
    steps = 0

    def sample(self, logits: torch.Tensor, rows: RowContext, masks: torch.Tensor | None) -> Sampled:
        self.steps += 1
        return super().sample(logits, rows, masks)

    def uniform(self, seed: int, index: int, place: int) -> float:
        return super().uniform(seed, self.steps, place)


class KeepsOutputs(RowByRow):
    def admit(self, admissions: Admissions) -> None:
        old = {slot: own.outputs for slot, own in self.slots.items()}
        super().admit(admissions)
        for slot in admissions.slots.tolist():
            self.slots[slot].outputs[:0] = old.get(slot, [])


class KeepsBias(RowByRow):
    def admit(self, admissions: Admissions) -> None:
        old = {slot: own.bias for slot, own in self.slots.items()}
        super().admit(admissions)
        for slot in admissions.slots.tolist():
            self.slots[slot].bias |= old.get(slot, {})


class StartsAnew(RowByRow):
    def admit(self, admissions: Admissions) -> None:
        super().admit(admissions)
        for slot in admissions.slots.tolist():
            self.slots[slot].produced = 0


class NoDraftsInHistory(RowByRow):
    def whose(self, row: int, rows: RowContext) -> tuple[Slot, list[int]]:
        return super().whose(row, rows)[0], []


class AcceptsAll(RowByRow):
    def accepts(self, token: int, draft: int) -> bool:
        return True


class AcceptsNone(RowByRow):
    def accepts(self, token: int, draft: int) -> bool:
        return False


class TakesTheHighestId(RowByRow):
    def best(self, row: Row) -> int:
        return int(np.flatnonzero(row == row.max())[-1])


class DividesFirst(RowByRow):
    def choose(self, row: Row, own: Slot, index: int, place: int) -> int:
        with np.errstate(all="ignore"):
            odds = np.exp((row / own.temperature).astype(np.float32))
            running = (odds / odds.sum()).cumsum()
        return int((~(running >= self.uniform(own.seed, index, place))).sum()) % len(row)


class NoughtIsOne(RowByRow):
    def cut(self, odds: Row, order: NDArray[np.int64], own: Slot) -> Row:
        own.top_k = own.top_k or 1
        return super().cut(odds, order, own)


class LeavesOneMore(RowByRow):
    def outside(self, share: Row, top_p: float) -> NDArray[np.bool_]:
        return np.roll(super().outside(share, top_p), 1) & super().outside(share, top_p)


class CutsTheCrossingToken(RowByRow):
    def outside(self, share: Row, top_p: float) -> NDArray[np.bool_]:
        outside: NDArray[np.bool_] = share.cumsum() > top_p
        outside[0] = False
        return outside


class ForgetsTemperature(RowByRow):
    def choose(self, row: Row, own: Slot, index: int, place: int) -> int:
        own.temperature = 1.0
        return super().choose(row, own, index, place)


class MaskBeforeBias(RowByRow):
    def bias(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        for token, value in own.bias.items():
            row[token] = max(row[token], -1.0) + value
        return row


class PenaltiesFirst(RowByRow):
    order = ("mask", "penalties", "allowed", "bias", "bad_words", "min_tokens")


class PenalisesPrompt(RowByRow):
    def penalties(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        return super().penalties(row, own, own.prompt + drafts)


class OverlooksPrompt(RowByRow):
    def penalties(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        own.prompt = []
        return super().penalties(row, own, drafts)


class AlwaysDivides(RowByRow):
    def penalties(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        seen = [*{*own.prompt, *own.outputs, *drafts}]
        row[seen] = np.abs(row[seen])
        return super().penalties(row, own, drafts)


class BadWordsInPrompt(RowByRow):
    def bad_words(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        for *first, last in own.bad_words:
            if [*own.prompt, *own.outputs, *drafts][-len(first) or 10**6 :] == first:
                row[last] = -math.inf
        return row


class OneTokenLate(RowByRow):
    def min_tokens(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        if own.min_tokens and own.produced + len(drafts) <= own.min_tokens:
            row[own.stops] = -math.inf
        return row


class HalfAMask(RowByRow):
    def process(
        self, row: Row, own: Slot, drafts: list[int], bits: NDArray[np.int32] | None
    ) -> Row:
        if bits is not None:
            bits = np.where(np.arange(len(bits)) < len(row) // 32, bits, -1).astype(np.int32)
        return super().process(row, own, drafts, bits)


class ReportsWhatIsLeft(RowByRow):
    def reported(self, raw: Row, done: Row) -> Row:
        return done


class ReportsToAll(RowByRow):
    def admit(self, admissions: Admissions) -> None:
        super().admit(admissions)
        for slot in admissions.slots.tolist():
            self.slots[slot].logprobs = max(self.slots[slot].logprobs, 0)


class SeesNoNaN(RowByRow):
    def sound(self, row: Row) -> bool:
        return super().sound(np.nan_to_num(row, nan=0.0, posinf=math.inf, neginf=-math.inf))


class ReportsTheBest(RowByRow):
    def score(self, row, token, most, where):
        return super().score(row, int(row.argmax()), most, where)


class OneBadRowSpoilsAll(RowByRow):
    def finish(self, raw: Row, done: Row, rows: RowContext) -> Sampled:
        sampled = super().finish(raw, done, rows)
        sampled.finite[:] = sampled.finite.all()
        return sampled


class TellsNoProcessor(RowByRow):
    def admit(self, admissions: Admissions) -> None:
        for place, slot in enumerate(admissions.slots.tolist()):
            self.slots[slot] = unpack(admissions, place)


class ProcessorsBackwards(RowByRow):
    def __init__(self, spec: SamplerSpec) -> None:
        super().__init__(spec)
        processors = spec.processors[::-1]
        self.spec = SamplerSpec(spec.vocab, spec.slots, spec.device, spec.max_drafts, processors)


BROKEN = {
    DrawsByPlace: "test_the_order_of_a_batch_changes_nothing",
    DrawsByNeighbours: "test_a_row_does_not_depend_on_its_neighbours",
    OneSeedForAll: "test_equal_seeds_give_equal_tokens_and_others_do_not",
    OneNumberForever: "test_equal_seeds_give_equal_tokens_and_others_do_not",
    CountsSteps: "test_requests_may_sit_out_steps",
    KeepsOutputs: "test_a_slot_forgets_its_last_request",
    KeepsBias: "test_a_slot_forgets_its_last_request",
    StartsAnew: "test_a_preempted_request_goes_on_in_another_slot",
    NoDraftsInHistory: "test_drafts_never_change_the_output",
    AcceptsAll: "test_drafts_never_change_the_output",
    AcceptsNone: "test_right_drafts_are_accepted_and_wrong_ones_are_not",
    TakesTheHighestId: "test_greedy_takes_the_lowest_of_the_best_ids",
    DividesFirst: "test_extreme_logits_and_temperatures_overflow_nowhere",
    NoughtIsOne: "test_limits_that_exclude_nothing_are_off",
    LeavesOneMore: "test_draws_follow_the_distribution",
    CutsTheCrossingToken: "test_draws_follow_the_distribution",
    ForgetsTemperature: "test_draws_follow_the_distribution",
    MaskBeforeBias: "test_bias_is_added_and_cannot_revive_a_forbidden_id",
    PenaltiesFirst: "test_bias_comes_before_penalties",
    PenalisesPrompt: "test_presence_and_frequency_penalties_count_outputs_only",
    OverlooksPrompt: "test_repetition_penalty_counts_prompt_and_outputs_once",
    AlwaysDivides: "test_repetition_penalty_counts_prompt_and_outputs_once",
    BadWordsInPrompt: "test_bad_words_look_at_outputs_only",
    OneTokenLate: "test_stop_ids_are_released_at_min_tokens",
    HalfAMask: "test_masks_are_obeyed_by_every_parameter",
    ReportsWhatIsLeft: "test_logprobs_are_of_the_raw_logits",
    ReportsToAll: "test_only_requests_that_ask_get_logprobs_each_its_number",
    ReportsTheBest: "test_given_tokens_are_reported_as_chosen_ones_are",
    SeesNoNaN: "test_a_row_that_is_not_finite_is_reported_and_hurts_nobody",
    OneBadRowSpoilsAll: "test_a_row_that_is_not_finite_is_reported_and_hurts_nobody",
    TellsNoProcessor: "test_processors_are_admitted_and_told_what_was_chosen",
    ProcessorsBackwards: "test_extra_processors_come_last_in_their_order_and_before_temperature",
}


def contract_of(sampler: type[RowByRow]) -> type[SamplerContract]:
    class Contract(SamplerContract):
        draws = 1_000

        def make(self, spec: SamplerSpec) -> Sampler:
            return sampler(spec)

    return Contract


def test_a_right_sampler_is_accepted() -> None:
    assert failures(contract_of(RowByRow)) == []


@pytest.mark.parametrize(
    ("broken", "test"), BROKEN.items(), ids=lambda one: getattr(one, "__name__", "")
)
def test_a_broken_sampler_is_rejected(broken: type[RowByRow], test: str) -> None:
    assert failures(contract_of(broken), only=[test]) == [test]
