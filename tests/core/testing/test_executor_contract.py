from __future__ import annotations

import numpy as np
import pytest

from camshaft.contracts.executor import Executor
from camshaft.contracts.moves import Moved, PageMove
from camshaft.contracts.scheduler import Rows
from camshaft.request import POOLINGS
from camshaft.step import FROM_DEVICE, LogprobRows, PooledRows, Step, StepOutput, float32, int32
from camshaft.testing.executor import ComputingExecutorContract
from camshaft.testing.rejects import failures

VOCAB, PAGE = 100, 4


class Toy(Executor):
    """The next token follows from all tokens in the request's pages, and from nothing else."""

    def __init__(self) -> None:
        self.pages = np.zeros((25, PAGE), dtype=np.int64)
        self.tables = np.zeros((4, 25), dtype=np.int64)
        self.lengths = np.zeros(4, dtype=np.int64)
        self.last = np.zeros(4, dtype=np.int64)
        self.logprobs = np.full(4, -1)
        self.flights: dict[int, tuple[Step, list[list[int]]]] = {}
        self.results: dict[int, StepOutput] = {}

    def launch(self, step: Step) -> None:
        self.copy(step)
        self.admit(step)
        contexts = []
        for row, slot in enumerate(step.slots):
            tokens = step.tokens[step.starts[row] : step.starts[row + 1]].tolist()
            contexts.append(self.extend(slot, [self.resolve(slot, one) for one in tokens]))
        self.flights[step.id] = (step, contexts)

    def copy(self, step: Step) -> None:
        for _, source, target in step.copies:
            self.pages[target] = self.pages[source]

    def admit(self, step: Step) -> None:
        for index, slot in enumerate(step.admissions.slots):
            self.lengths[slot] = step.admissions.context[index]
            self.logprobs[slot] = step.admissions.logprobs[index]
        for index, slot in enumerate(step.write_slot):
            pages, first = step.write_pages[index], step.write_first[index]
            self.tables[slot, first : first + len(pages)] = pages

    def resolve(self, slot: int, token: int) -> int:
        return int(self.last[slot]) if token == FROM_DEVICE else token

    def extend(self, slot: int, tokens: list[int]) -> list[int]:
        for token in tokens:
            page, offset = divmod(int(self.lengths[slot]), PAGE)
            self.pages[self.tables[slot, page], offset] = token
            self.lengths[slot] += 1
        known: list[int] = self.pages[self.tables[slot]].reshape(-1).tolist()
        return known[: self.lengths[slot]]

    def samples(self, step: Step) -> list[int]:
        return [row for row, which in enumerate(step.rows) if which == Rows.LAST]

    def choose(self, context: list[int], mask: np.ndarray | None) -> int:
        token = hash(tuple(context)) % VOCAB
        while mask is not None and not mask[token // 32] >> (token % 32) & 1:
            token = (token + 1) % VOCAB
        return token

    def sample(self, step: int, masks: np.ndarray | None = None) -> None:
        launched, contexts = self.flights.pop(step)
        tokens = np.zeros((len(contexts), 1), dtype=np.int32)
        counts = np.zeros(len(contexts), dtype=np.int32)
        for place, row in enumerate(self.samples(launched)):
            tokens[row] = self.choose(contexts[row], None if masks is None else masks[place])
            counts[row] = 1
            self.last[launched.slots[row]] = tokens[row, 0]
        reads = [self.read(launched, contexts, *one) for one in launched.reads.tolist()]
        asking = [row for row in self.samples(launched) if self.logprobs[launched.slots[row]] >= 0]
        self.results[step] = StepOutput(
            step, tokens, counts, np.ones(len(contexts), np.bool_), self.report(tokens, asking)
        )
        self.results[step].pooled = self.pool(launched, contexts)
        if reads:
            owners, values = zip(*reads, strict=True)
            ids, ones = np.zeros((len(reads), 2), dtype=np.int32), int32([1] * len(reads))
            self.results[step].reads = LogprobRows(
                int32(owners), ones - 1, float32(values), ones, ids, ids.astype(np.float32)
            )

    def pool(self, step: Step, contexts: list[list[int]]) -> PooledRows | None:
        rows = [row for row in self.samples(step) if len(step.pooling) and step.pooling[row]]
        made = [self.vector(contexts[row], POOLINGS[step.pooling[row]]) for row in rows]
        return PooledRows(int32(rows), np.array(made, dtype=np.float32)) if rows else None

    def vector(self, context: list[int], kind: str) -> list[float]:
        states = [(float(token), float(place)) for place, token in enumerate(context)]
        if kind == "mean":
            return [sum(values) / len(states) for values in zip(*states, strict=True)]
        return list(states[0 if kind == "cls" else -1])

    def read(self, step: Step, contexts: list[list[int]], *one: int) -> tuple[int, float]:
        place, token, _ = one
        owner = int(np.searchsorted(step.starts, place, side="right")) - 1
        known = contexts[owner]
        before = known[: len(known) - (int(step.starts[owner + 1]) - place - 1)]
        return owner, -float(self.choose([*before, token], None))

    def report(self, tokens: np.ndarray, rows: list[int]) -> LogprobRows | None:
        if not rows:
            return None
        ids = np.array([(tokens[row, 0] + np.arange(3)) % VOCAB for row in rows], dtype=np.int32)
        zeros = np.zeros(len(rows), dtype=np.int32)
        values = np.tile(float32([-0.5, -1.5, -2.5]), (len(rows), 1))
        return LogprobRows(int32(rows), zeros, values[:, 0], zeros + 1, ids, values)

    def wait(self, step: int) -> StepOutput:
        return self.results.pop(step)


def verdict(executor: type[Executor]) -> list[str]:
    class Contract(ComputingExecutorContract):
        vocab = VOCAB
        depth = 2

        def make(self) -> Executor:
            return executor()

    return failures(Contract)


class ToyTray:
    def __init__(self, memory: np.ndarray, count: int) -> None:
        self.memory, self.count = memory, count

    @property
    def pages(self) -> np.ndarray:
        return self.memory[: self.count]

    def first(self, count: int) -> ToyTray:
        return ToyTray(self.memory, count)


class Moving(Toy):
    moves_pages = True

    def __init__(self) -> None:
        super().__init__()
        self.ended: list[Moved] = []

    def tray(self, group, pages):
        return ToyTray(np.zeros((pages, PAGE), dtype=np.int64), pages)

    def export(self, one):
        one.tray.pages[:] = self.pages[list(one.pages)]

    def load(self, one):
        self.pages[list(one.pages)] = one.tray.pages

    def move(self, exports, loads):
        for one in exports:
            self.export(one)
        for one in loads:
            self.load(one)
        self.ended += [Moved(one.ticket) for one in (*exports, *loads)]

    def moved(self):
        ended, self.ended = self.ended, []
        return ended


@pytest.mark.parametrize("executor", [Toy, Moving])
def test_a_good_executor_passes(executor: type[Executor]) -> None:
    assert verdict(executor) == []


class ExportsAfterTheNextStep(Moving):
    def __init__(self) -> None:
        super().__init__()
        self.late: list[PageMove] = []

    def export(self, one):
        self.late.append(one)

    def launch(self, step):
        super().launch(step)
        while self.late:
            super().export(self.late.pop())


class LoadsAfterTheNextStep(Moving):
    def __init__(self) -> None:
        super().__init__()
        self.late: list[PageMove] = []

    def load(self, one):
        self.late.append(one)

    def launch(self, step):
        super().launch(step)
        while self.late:
            super().load(self.late.pop())


class LoadsBeforeItExports(Moving):
    def move(self, exports, loads):
        super().move([], loads)
        super().move(exports, [])


class TellsTwice(Moving):
    def moved(self):
        return list(self.ended)


class WholeTraysOnly(Moving):
    def tray(self, group, pages):
        tray = super().tray(group, pages)
        tray.first = lambda count: tray
        return tray


class ATokenForEveryRow(Toy):
    def samples(self, step):
        return list(range(len(step.slots)))


class WideIntegers(Toy):
    def wait(self, step):
        output = super().wait(step)
        output.tokens = output.tokens.astype(np.int64)
        return output


class OutOfVocabulary(Toy):
    def choose(self, context, mask):
        return super().choose(context, mask) + VOCAB * (context[0] == 0)


class NewestFirst(Toy):
    def wait(self, step):
        return self.results.pop(max(self.results))


class GivesOldAnswers(Toy):
    def wait(self, step):
        return self.results[step]


class NeedsWork(Toy):
    def drain(self):
        assert self.results, "nothing to drain"


class ReadsTheHostsToken(Toy):
    """Takes the placeholder itself for a token."""

    def resolve(self, slot, token):
        return token


class LastTokenOfTheStep(Toy):
    def resolve(self, slot, token):
        return int(self.last.max()) if token == FROM_DEVICE else token


class StartsAnew(Toy):
    """A chunk is all it sees."""

    def extend(self, slot, tokens):
        super().extend(slot, tokens)
        return tokens


class OneContext(Toy):
    """Requests of a step see each other."""

    def sample(self, step, masks=None):
        launched, contexts = self.flights[step]
        self.flights[step] = (
            launched,
            [[token for one in contexts for token in one]] * len(contexts),
        )
        super().sample(step, masks)


class AnswersPartByPart(Toy):
    """Outputs stand in the order of the nano-batches."""

    def sample(self, step, masks=None):
        order = self.flights[step][0].nano_batch.argsort(kind="stable")
        super().sample(step, masks)
        if len(order):
            self.results[step].tokens = self.results[step].tokens[order]


class KeepsLengths(Toy):
    def admit(self, step):
        before = self.lengths.copy()
        super().admit(step)
        self.lengths = np.maximum(before, self.lengths)


class OwnMemory(Toy):
    """Memory by slot: page tables are for others."""

    def admit(self, step):
        super().admit(step)
        self.tables = np.arange(1, 25).reshape(4, 6)


class CopiesAfterwards(Toy):
    def launch(self, step):
        copies, step.copies = step.copies, step.copies[:0]
        super().launch(step)
        step.copies = copies
        self.copy(step)
        self.flights[step.id] = (step, [self.extend(slot, []) for slot in step.slots])


class NoCopies(Toy):
    def copy(self, step):
        pass


class PoolsAllAlike(Toy):
    def vector(self, context, kind):
        return super().vector(context, "mean")


class PoolsTheLastChunk(Toy):
    def pool(self, step, contexts):
        own = zip(contexts, np.diff(step.starts), strict=True)
        return super().pool(step, [context[-count:] for context, count in own])


class FreeChoice(Toy):
    def choose(self, context, mask):
        return super().choose(context, None)


class MasksByRequest(Toy):
    """Takes row i of the masks for request i, with or without logits."""

    def sample(self, step, masks=None):
        if masks is not None:
            rows = self.samples(self.flights[step][0])
            masks = [masks[min(row, len(masks) - 1)] for row in rows[::-1]]
        super().sample(step, masks)


class LogprobsOfAll(Toy):
    def admit(self, step):
        super().admit(step)
        self.logprobs[:] = 3


class ReadsBehindTheStep(Toy):
    """Judges every prompt token by all that its request has computed."""

    def read(self, step, contexts, *one):
        owner, _ = super().read(step, contexts, *one)
        return owner, -float(self.choose([*contexts[owner], one[1]], None))


class LogprobsByPlace(Toy):
    """Counts the rows among those that asked."""

    def report(self, tokens, rows):
        report = super().report(tokens, rows)
        if report is not None:
            report.row = np.arange(len(rows), dtype=np.int32)
        return report


@pytest.mark.parametrize(
    ("executor", "test"),
    [
        (ATokenForEveryRow, "test_only_rows_with_logits_have_tokens"),
        (ATokenForEveryRow, "test_a_step_that_only_fills_pages_gives_nothing"),
        (WideIntegers, "test_there_is_a_row_for_each_request"),
        (OutOfVocabulary, "test_tokens_are_ids_of_the_vocabulary"),
        (NewestFirst, "test_outputs_carry_the_id_of_their_step"),
        (GivesOldAnswers, "test_a_result_is_given_once"),
        (NeedsWork, "test_a_drain_with_nothing_in_flight_is_harmless"),
        (ReadsTheHostsToken, "test_steps_in_flight_continue_from_the_last_sampled_token"),
        (LastTokenOfTheStep, "test_steps_in_flight_continue_from_the_last_sampled_token"),
        (StartsAnew, "test_a_prompt_may_come_in_chunks"),
        (OneContext, "test_neighbours_in_a_step_do_not_matter"),
        (AnswersPartByPart, "test_nano_batches_change_no_answer"),
        (KeepsLengths, "test_a_slot_that_changes_hands_is_forgotten"),
        (OwnMemory, "test_the_pages_of_a_prefix_can_be_shared"),
        (CopiesAfterwards, "test_pages_are_copied_before_the_step_writes"),
        (NoCopies, "test_pages_are_copied_before_the_step_writes"),
        (FreeChoice, "test_masks_bind_the_rows_with_logits_in_step_order"),
        (MasksByRequest, "test_masks_bind_the_rows_with_logits_in_step_order"),
        (ExportsAfterTheNextStep, "test_pages_come_back_from_the_host_as_they_left"),
        (LoadsAfterTheNextStep, "test_pages_come_back_from_the_host_as_they_left"),
        (LoadsBeforeItExports, "test_exports_of_a_move_come_before_its_loads"),
        (TellsTwice, "test_pages_come_back_from_the_host_as_they_left"),
        (WholeTraysOnly, "test_a_tray_can_be_used_for_fewer_pages"),
        (LogprobsOfAll, "test_nobody_asked_nobody_pays"),
        (LogprobsByPlace, "test_logprobs_are_reported_for_those_who_ask"),
        (PoolsAllAlike, "test_vectors_of_prompts_are_the_same_in_chunks"),
        (PoolsTheLastChunk, "test_vectors_of_prompts_are_the_same_in_chunks"),
        (ReadsBehindTheStep, "test_prompt_tokens_are_reported_the_same_in_chunks"),
    ],
)
def test_an_executor_that_breaks_a_promise_is_rejected(executor: type[Executor], test: str) -> None:
    assert test in verdict(executor)
