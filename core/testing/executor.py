"""The contract of executors, as tests to inherit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from ..contracts.executor import Executor
from ..contracts.moves import Moved, PageMove
from ..contracts.scheduler import Rows
from ..request import POOLINGS
from .steps import StepDriver, row_masks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..loop.state import RequestState
    from ..step import StepOutput

PROMPT = [11, 5, 8, 2, 9, 9, 4, 17, 3, 6]


class ExecutorContract:
    """Subclass it, define `make`, set what it is made for, and run pytest.

    The executor has one full KV group. Content is compared, never judged: where two ways lead to
    the same tokens in the same pages, the same next token must come out, to the bit. So make it in
    its deterministic configuration.

    Attributes:
        vocab: Ids are below it; at least 32.
        slots: At least 4.
        page_tokens: Tokens of a page.
        pages: Ids are 1 to `pages`; at least 24.
        depth: Steps that are in flight beyond the newest.
    """

    vocab: int = 320
    slots: int = 4
    page_tokens: int = 4
    pages: int = 24
    depth: int = 1

    def make(self) -> Executor:
        """Return a new executor, always with the same weights."""
        raise NotImplementedError

    def drive(self, depth: int = 0) -> StepDriver:
        """Return a driver of a new executor."""
        return StepDriver(self.make(), depth)

    def alone(self, prompt: Sequence[int] = PROMPT, outputs: int = 4) -> list[int]:
        """Return the greedy outputs of a prompt that has an executor for itself."""
        drive = self.drive()
        state = drive.open(prompt, 0, range(1, 7))
        drive.launch((state, len(prompt)))
        tokens = drive.decode(state, outputs - 1)
        drive.executor.close()
        return tokens

    def test_there_is_a_row_for_each_request(self) -> None:
        """Tokens [B, 1 + K], counts [B], finite [B], of the types that `StepOutput` names."""
        drive, output = self._mixed_step()
        assert output.tokens.shape == (3, 1)
        assert output.counts.shape == (3,)
        assert output.finite.shape == (3,)
        kinds = [str(one.dtype) for one in (output.tokens, output.counts, output.finite)]
        assert kinds == ["int32", "int32", "bool"]
        drive.executor.close()

    def test_only_rows_with_logits_have_tokens(self) -> None:
        """A chunk that is not the prompt's last has a count of 0; every other request 1."""
        _, output = self._mixed_step()
        assert output.counts.tolist() == [1, 0, 1]
        assert output.finite.all()

    def test_tokens_are_ids_of_the_vocabulary(self) -> None:
        """Whatever the prompt is."""
        for first in (0, 1, self.vocab - 1):
            tokens = self.alone([first, first], outputs=3)
            assert len(tokens) == 3
            assert all(0 <= token < self.vocab for token in tokens)

    def test_a_step_that_only_fills_pages_gives_nothing(self) -> None:
        """`Rows.NONE`, also for a request that could have been sampled."""
        drive = self.drive()
        state = drive.open(PROMPT, 0, [1, 2, 3])
        step = drive.launch((state, len(PROMPT)), rows=Rows.NONE)
        assert drive.outputs[step].counts.tolist() == [0]

    def test_outputs_carry_the_id_of_their_step(self) -> None:
        """With as many in flight as the depth allows."""
        drive = self.drive(self.depth)
        state = drive.open(PROMPT, 0, range(1, 7))
        steps = [drive.launch((state, len(PROMPT)))]
        steps += [drive.launch((state, 1)) for _ in range(self.depth + 3)]
        drive.finish()
        assert [drive.outputs[step].id for step in steps] == steps

    def test_a_result_is_given_once(self) -> None:
        """A second `wait` for a step is an error, not an old answer."""
        drive = self.drive()
        state = drive.open(PROMPT, 0, range(1, 7))
        step = drive.launch((state, len(PROMPT)))
        with pytest.raises(Exception):  # noqa: B017, PT011 - which one is the executor's business
            drive.executor.wait(step)

    def test_a_drain_with_nothing_in_flight_is_harmless(self) -> None:
        """Before the first step, and between steps."""
        drive = self.drive(self.depth)
        drive.executor.drain()
        state = drive.open(PROMPT, 0, range(1, 7))
        drive.launch((state, len(PROMPT)))
        drive.finish()
        drive.executor.drain()
        assert drive.decode(state, 3) == self.alone()

    def test_steps_in_flight_continue_from_the_last_sampled_token(self) -> None:
        """A token that only the device knows counts as if the host had read and sent it."""
        drive = self.drive(self.depth)
        one = drive.open(PROMPT, 0, range(1, 7))
        other = drive.open(PROMPT[::-1], 1, range(7, 13))
        drive.launch((one, len(PROMPT)), (other, len(PROMPT)))
        for _ in range(5):
            drive.launch((one, 1), (other, 1))
        drive.finish()
        assert drive.decode(one, 0) == self.alone(PROMPT, 6)
        assert drive.decode(other, 0) == self.alone(PROMPT[::-1], 6)

    def test_closing_leaves_nothing_to_wait_for(self) -> None:
        """Also with steps in flight: a server that stops does not wait for them."""
        drive = self.drive(depth=5)
        state = drive.open(PROMPT, 0, range(1, 7))
        drive.launch((state, len(PROMPT)))
        drive.executor.close()

    def test_who_slept_answers_as_before(self) -> None:
        """Pages have memory again, whatever was recorded before; to sleep twice is to sleep."""
        drive = self.drive()
        state = drive.open(PROMPT, 0, range(1, 7))
        drive.launch((state, len(PROMPT)))
        drive.decode(state, 3)
        freed = drive.executor.sleep()
        assert freed >= 0
        assert drive.executor.sleep() == 0
        drive.executor.wake()
        again = drive.open(PROMPT, 1, range(7, 13))
        drive.launch((again, len(PROMPT)))
        assert drive.decode(again, 3) == self.alone()

    @pytest.mark.parametrize("chunk", [1, 3, 4, 9])
    def test_a_prompt_may_come_in_chunks(self, chunk: int) -> None:
        """Of any size, with or without regard to pages."""
        drive = self.drive(self.depth)
        state = drive.open(PROMPT, 0, range(1, 7))
        for start in range(0, len(PROMPT), chunk):
            drive.launch((state, min(chunk, len(PROMPT) - start)))
        assert drive.decode(state, 3) == self.alone()

    def test_neighbours_in_a_step_do_not_matter(self) -> None:
        """Decoding beside prompts gives what it gives alone."""
        drive = self.drive(self.depth)
        first = drive.open(PROMPT, 2, [3, 9, 1, 12])
        drive.launch((first, len(PROMPT)))
        second = drive.open(PROMPT[::-1], 0, [2, 8, 4, 13])
        drive.launch((first, 1), (second, 6))
        third = drive.open([7], 3, [6, 7])
        drive.launch((first, 1), (second, 4), (third, 1))
        drive.launch((third, 1), (first, 1), (second, 1))
        drive.finish()
        assert drive.decode(first, 0) == self.alone(PROMPT, 4)
        assert drive.decode(second, 0) == self.alone(PROMPT[::-1], 2)
        assert drive.decode(third, 0) == self.alone([7], 2)

    def test_nano_batches_change_no_answer(self) -> None:
        """Whatever is in them, and whichever of them has logits; outputs keep the step's order."""
        drive = self.drive(self.depth)
        first = drive.open(PROMPT, 2, [3, 9, 1, 12])
        second = drive.open(PROMPT[::-1], 0, [2, 8, 4, 13])
        drive.launch((first, 10), (second, 6), nano_batch=[0, 1])
        third = drive.open([7, 8], 3, [6, 7])
        drive.launch((first, 1), (third, 2), (second, 4), nano_batch=[1, 0, 1])
        drive.launch((second, 1), (third, 1), (first, 1), nano_batch=[2, 0, 1])
        drive.launch((first, 1), (second, 1), (third, 1), nano_batch=[1, 0, 1])
        drive.finish()
        assert drive.decode(first, 0) == self.alone(PROMPT, 4)
        assert drive.decode(second, 0) == self.alone(PROMPT[::-1], 3)
        assert drive.decode(third, 0) == self.alone([7, 8], 3)

    def test_it_does_not_matter_which_pages_a_request_has(self) -> None:
        """In any order, and added whenever they are needed."""
        drive = self.drive(self.depth)
        state = drive.open(PROMPT, 1, [self.pages, 2])
        drive.launch((state, 6))
        drive.grow(state, [17])
        drive.launch((state, 4))
        drive.grow(state, [5, 1])
        assert drive.decode(state, 3) == self.alone()

    def test_a_slot_that_changes_hands_is_forgotten(self) -> None:
        """Length, last token and page table of the request before are void."""
        drive = self.drive(self.depth)
        before = drive.open(PROMPT[::-1], 1, range(7, 13))
        drive.launch((before, len(PROMPT)))
        drive.decode(before, 5)
        after = drive.open(PROMPT, 1, range(1, 7))
        drive.launch((after, len(PROMPT)))
        assert drive.decode(after, 3) == self.alone()

    def test_pages_that_change_hands_are_forgotten(self) -> None:
        """What a shorter request leaves unwritten in them is not read."""
        drive = self.drive(self.depth)
        before = drive.open([*PROMPT, *PROMPT], 0, range(1, 7))
        drive.launch((before, 2 * len(PROMPT)))
        drive.decode(before, 2)
        after = drive.open(PROMPT, 0, range(6, 0, -1))
        drive.launch((after, len(PROMPT)))
        assert drive.decode(after, 3) == self.alone()

    def test_the_pages_of_a_prefix_can_be_shared(self) -> None:
        """A request that adopts them, with its context, goes on as if it had computed them."""
        drive = self.drive(self.depth)
        first = drive.open(PROMPT, 0, range(1, 7))
        drive.launch((first, len(PROMPT)))
        whole = len(PROMPT) // self.page_tokens
        shared = [*range(1, 1 + whole), 20, 21, 22]
        cached = whole * self.page_tokens
        second = drive.open(PROMPT, 1, shared, cached=cached, used=whole)
        drive.launch((first, 1), (second, len(PROMPT) - cached))
        drive.launch((first, 1), (second, 1))
        assert drive.decode(second, 2) == self.alone()
        assert drive.decode(first, 1) == self.alone()

    def test_pages_are_copied_before_the_step_writes(self) -> None:
        """A fork copies its last page while the parent goes on writing the original."""
        drive = self.drive(self.depth)
        parent = drive.open(PROMPT[:9], 0, [1, 2, 3, 4, 5])
        drive.launch((parent, 9), rows=Rows.NONE)
        drive.finish()
        for page in (1, 2, 3):
            drive.copy(page, 10 + page)
        child = drive.open(PROMPT, 1, [11, 12, 13, 14, 15], cached=9, used=3)
        parent.tokens.append(23)  # another tenth token than the child's
        parent.known += 1
        drive.launch((parent, 1), (child, 1))
        assert drive.decode(child, 3) == self.alone()

    def test_pages_come_back_from_the_host_as_they_left(self) -> None:
        """To other places, while those that they left belong to somebody else."""
        drive = self._moving()
        tray = drive.executor.tray(0, 2)
        drive.launch((drive.open(PROMPT, 0, [1, 2, 3]), len(PROMPT)))
        drive.executor.move([PageMove(1, 0, (1, 2), tray)], [])
        other = drive.open(PROMPT[::-1], 1, [1, 2, 3, 4, 5, 6])
        drive.launch((other, len(PROMPT)))
        self._await_moves(drive, [1])
        drive.executor.move([], [PageMove(2, 0, (21, 9), tray)])
        again = drive.open(PROMPT, 2, [21, 9, 10, 11], cached=8, used=2)
        drive.launch((other, 1), (again, 2))
        assert drive.decode(again, 3) == self.alone()
        assert drive.decode(other, 2) == self.alone(PROMPT[::-1])
        self._await_moves(drive, [2])

    def test_exports_of_a_move_come_before_its_loads(self) -> None:
        """A page that is exported and filled by one call is exported as it was."""
        drive = self._moving()
        one, other = (drive.executor.tray(0, 2) for _ in range(2))
        drive.launch((drive.open(PROMPT, 0, [1, 2, 3]), len(PROMPT)))
        drive.launch((drive.open(PROMPT[::-1], 1, [4, 5, 6]), len(PROMPT)))
        drive.executor.move([PageMove(1, 0, (1, 2), one)], [])
        self._await_moves(drive, [1])
        drive.executor.move([PageMove(2, 0, (4, 5), other)], [PageMove(3, 0, (4, 5), one)])
        first = drive.open(PROMPT, 0, [4, 5, 7, 8], cached=8, used=2)
        drive.launch((first, 2))
        self._await_moves(drive, [2, 3])
        drive.executor.move([], [PageMove(4, 0, (1, 2), other)])
        second = drive.open(PROMPT[::-1], 1, [1, 2, 9, 10], cached=8, used=2)
        drive.launch((first, 1), (second, 2))
        assert drive.decode(first, 2) == self.alone()
        assert drive.decode(second, 3) == self.alone(PROMPT[::-1])

    def test_a_tray_can_be_used_for_fewer_pages(self) -> None:
        """The same memory, for a part of them."""
        drive = self._moving()
        tray = drive.executor.tray(0, 5).first(2)
        assert tray.count == 2
        drive.launch((drive.open(PROMPT, 0, [1, 2, 3]), len(PROMPT)))
        drive.executor.move([PageMove(1, 0, (1, 2), tray)], [])
        self._await_moves(drive, [1])
        drive.executor.move([], [PageMove(2, 0, (5, 6), tray)])
        again = drive.open(PROMPT, 1, [5, 6, 7, 8], cached=8, used=2)
        drive.launch((again, 2))
        assert drive.decode(again, 3) == self.alone()

    def _moving(self) -> StepDriver:
        drive = self.drive(self.depth)
        if not drive.executor.moves_pages:
            pytest.skip("this executor moves no pages")
        return drive

    @staticmethod
    def _await_moves(drive: StepDriver, tickets: list[int]) -> None:
        """Let steps in flight end; then the moves do by themselves, and are told once each."""
        drive.finish()
        ended: list[Moved] = []
        until = time.monotonic() + 5
        while len(ended) < len(tickets) and time.monotonic() < until:
            ended += drive.executor.moved()
        assert sorted(ended) == [Moved(ticket) for ticket in tickets]
        assert drive.executor.moved() == []

    def test_nobody_asked_nobody_pays(self) -> None:
        """No logprobs without a request for them."""
        drive = self.drive()
        state = drive.open(PROMPT, 0, range(1, 7))
        assert drive.outputs[drive.launch((state, len(PROMPT)))].logprobs is None

    def _mixed(self) -> tuple[StepDriver, list[RequestState]]:
        """Return a driver with one request that decodes, and two prompts of 10 and 3 tokens."""
        drive = self.drive()
        first = drive.open(PROMPT, 3, range(1, 5))
        drive.launch((first, len(PROMPT)))
        return drive, [first, drive.open(PROMPT, 0, range(5, 9)), drive.open([4, 5, 6], 2, [9])]

    def _mixed_step(self) -> tuple[StepDriver, StepOutput]:
        """Run a step of a decode, a chunk and a whole prompt."""
        drive, states = self._mixed()
        step = drive.launch(*zip(states, (1, 4, 3), strict=True))
        return drive, drive.outputs[step]


class ComputingExecutorContract(ExecutorContract):
    """The contract of executors that run a model: masks and logprobs act on what it computes."""

    def test_masks_bind_the_rows_with_logits_in_step_order(self) -> None:
        """A request without logits in this step has no row in the masks."""
        drive, states = self._mixed()
        masks = row_masks([[7], [self.vocab - 1]], self.vocab)
        step = drive.launch(*zip(states, (1, 4, 3), strict=True), masks=masks)
        output = drive.outputs[step]
        assert [row[:n] for row, n in zip(output.tokens.tolist(), output.counts, strict=True)] == [
            [7],
            [],
            [self.vocab - 1],
        ]

    def test_a_mask_that_allows_all_changes_nothing(self) -> None:
        """All bits set is no constraint."""
        drive = self.drive()
        state = drive.open(PROMPT, 0, range(1, 7))
        everything = row_masks([range(self.vocab)], self.vocab)
        drive.launch((state, len(PROMPT)), masks=everything)
        assert drive.decode(state, 3) == self.alone()

    def test_logprobs_are_reported_for_those_who_ask(self) -> None:
        """With the row of their request, and the greedy token as the first of the alternatives."""
        drive = self.drive()
        quiet = drive.open(PROMPT, 0, range(1, 7))
        asking = drive.open(PROMPT[::-1], 1, range(7, 13), logprobs=3)
        output = drive.outputs[drive.launch((quiet, len(PROMPT)), (asking, len(PROMPT)))]
        rows = output.logprobs
        assert rows is not None
        assert (rows.row.tolist(), rows.offset.tolist()) == ([1], [0])
        assert rows.rank.tolist() == [1]
        assert (rows.chosen <= 0).all()
        assert rows.ids.shape == rows.values.shape == (1, 3)
        assert rows.ids[0, 0] == output.tokens[1, 0]
        assert rows.values[0, 0] == rows.chosen[0]

    def test_prompt_tokens_are_reported_the_same_in_chunks(self) -> None:
        """Each but the first, by what stands before it, also where a chunk begins."""
        whole, sizes = self._reads([len(PROMPT)])
        assert sizes == [len(PROMPT) - 1]
        assert whole == sorted(whole, key=lambda one: one[0])
        assert all(one <= 0 and rank >= 1 for _, one, rank in whole)
        chunks, sizes = self._reads([3, 1, len(PROMPT) - 4])
        assert sizes == [3, 1, len(PROMPT) - 5]
        for found, expected in zip(chunks, whole, strict=True):
            assert found == pytest.approx(expected, abs=1e-4)

    def test_vectors_of_prompts_are_the_same_in_chunks(self) -> None:
        """Of each pooling, beside one who gets a token as ever."""
        whole, chunks = (self._vectors(one) for one in ([len(PROMPT)], [3, 1, len(PROMPT) - 4]))
        assert list(whole) == list(POOLINGS[1:])
        assert len({tuple(one) for one in whole.values()}) == len(whole)
        for kind, vector in whole.items():
            assert chunks[kind] == pytest.approx(vector, abs=1e-5), kind

    def _vectors(self, chunks: list[int]) -> dict[str, list[float]]:
        """Return the vector of a prompt by its pooling."""
        drive = self.drive()
        pages = iter(range(1, 25))
        states = {
            kind: drive.open(PROMPT, slot, [next(pages) for _ in range(6)], pooling=kind)
            for slot, kind in enumerate(POOLINGS)
        }
        steps = [drive.launch(*((state, tokens) for state in states.values())) for tokens in chunks]
        drive.finish()
        output, order = drive.outputs[steps[-1]], drive.order[steps[-1]]
        assert output.counts.tolist() == [1] * len(states)
        assert states["none"].tokens[len(PROMPT) :] == self.alone(outputs=1)
        assert output.pooled is not None
        found = zip(output.pooled.row.tolist(), output.pooled.values.tolist(), strict=True)
        by_uid = {order[row].uid: values for row, values in found}
        return {kind: by_uid[state.uid] for kind, state in states.items() if state.uid in by_uid}

    def _reads(self, chunks: list[int]) -> tuple[list[tuple[int, float, int]], list[int]]:
        """Return (place, logprob, rank) of each token beside a request that asks for none."""
        drive = self.drive()
        quiet = drive.open(PROMPT, 0, range(1, 7))
        asking = drive.open(PROMPT, 1, range(7, 13), prompt_logprobs=2)
        sizes: list[int] = []
        reads: list[tuple[float, int]] = []
        for tokens in chunks:
            step = drive.launch((quiet, tokens), (asking, tokens))
            drive.finish()
            found = drive.outputs[step].reads
            assert found is not None
            assert set(found.row.tolist()) == {1}
            assert found.ids.shape == found.values.shape == (len(found.row), 2)
            reads += zip(found.chosen.tolist(), found.rank.tolist(), strict=True)
            sizes.append(len(found.row))
        return [(place, *one) for place, one in enumerate(reads)], sizes
