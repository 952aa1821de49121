"""Steps without an engine: for tests that talk to an executor directly."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ..contracts.cache import PageCopy, TableWrite
from ..contracts.scheduler import Rows
from ..loop.batch import Batch
from ..loop.columns import Share
from ..loop.pack import pack_step
from ..loop.state import RequestState, Status
from ..step import int32
from .engines import make_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ..contracts.executor import Executor
    from ..step import StepOutput

ROOM = 4096
"""Longest sequence of the requests opened here."""


class StepDriver:
    """Plays the engine for one executor: packs steps, keeps some in flight, reads their results.

    The caller decides what the engine's cache would: which pages a request gets. A token that the
    host has not read yet is packed as `FROM_DEVICE`, by the engine's own code.

    Attributes:
        outputs: By step, as far as they were waited for.
        order: By step: its requests, in the order of the output's rows.
    """

    def __init__(self, executor: Executor, depth: int = 0) -> None:
        """Drive an executor.

        Args:
            executor: New, or at rest.
            depth: Steps in flight beyond the newest; 0 reads each before the next is launched.
        """
        self.executor = executor
        self.depth = depth
        self.outputs: dict[int, StepOutput] = {}
        self.order: dict[int, list[RequestState]] = {}
        self._flying: deque[int] = deque()
        self._next = Batch(1)
        self._requests = 0

    def open(
        self,
        prompt: Sequence[int],
        slot: int,
        pages: Sequence[int],
        *,
        cached: int = 0,
        used: int = 0,
        **params: object,
    ) -> RequestState:
        """Give a request a slot and pages, with the next step.

        Args:
            prompt: Token ids.
            slot: Its row on the device.
            pages: From the start of the sequence.
            cached: Tokens whose keys and values are there already: a prefix hit.
            used: How many of the pages hold them; the others change hands.
            **params: Of `make_request`; greedy by default.
        """
        self._requests += 1
        request = make_request(f"r{self._requests}", prompt, ROOM, **params)
        state = RequestState(self._requests, request, frozenset(), ROOM, seed=self._requests)
        state.slot, state.computed, state.status = slot, cached, Status.RUNNING
        self._next.admitted.append(state)
        self.grow(state, pages, used=used)
        return state

    def grow(self, state: RequestState, pages: Sequence[int], *, used: int = 0) -> None:
        """Add pages to the end of a request's table, with the next step."""
        self._next.writes.append((state, TableWrite(0, state.granted, pages)))
        if self.executor.wants_fresh:
            self._next.fresh.extend((state, 0, page) for page in pages[used:])
        state.granted += len(pages)

    def copy(self, source: int, target: int) -> None:
        """Copy a page, with the next step."""
        self._next.copies.append(PageCopy(0, source, target))

    def launch(
        self,
        *shares: tuple[RequestState, int],
        rows: Rows = Rows.AUTO,
        masks: NDArray[np.int32] | None = None,
        nano_batch: Sequence[int] = (),
    ) -> int:
        """Launch a step and its choice of tokens; wait for the oldest if too many are in flight.

        Args:
            *shares: Requests, and how many of their tokens to compute.
            rows: Which positions get logits; `AUTO` as in the engine.
            masks: For `Executor.sample`.
            nano_batch: Number of each request's nano-batch, in the order of `shares`.

        Returns:
            The step's id.
        """
        batch, self._next = self._next, Batch(self._next.step + 1)
        for state, tokens in shares:
            which = rows
            if rows is Rows.AUTO:
                which = Rows.LAST if state.computed + tokens >= state.known else Rows.NONE
            batch.shares.append(Share(state, state.computed, tokens, 0, which))
        batch.arrange()
        if nano_batch:
            number = {state.uid: one for (state, _), one in zip(shares, nano_batch, strict=True)}
            batch.nano_batch = int32([number[state.uid] for state in batch.columns.states])
        self.order[batch.step] = batch.columns.states
        self.executor.launch(pack_step(batch))
        for share in batch.shares:
            share.state.computed += share.tokens
            share.state.known += share.samples
        self.executor.sample(batch.step, masks)
        self._flying.append(batch.step)
        if len(self._flying) > self.depth:
            if not self.depth:
                self.executor.drain()
            self._wait()
        return batch.step

    def finish(self) -> None:
        """Wait for everything that is in flight."""
        if self._flying:
            self.executor.drain()
        while self._flying:
            self._wait()

    def decode(self, state: RequestState, steps: int) -> list[int]:
        """Run one request for some single-token steps, to the end; return all its outputs."""
        for _ in range(steps):
            self.launch((state, 1))
        self.finish()
        return state.tokens[state.prompt_tokens :]

    def _wait(self) -> None:
        step = self._flying.popleft()
        output = self.executor.wait(step)
        self.outputs[step] = output
        rows = zip(self.order[step], output.tokens.tolist(), output.counts.tolist(), strict=True)
        for state, tokens, count in rows:
            state.tokens.extend(tokens[:count])


def row_masks(allowed: Sequence[Sequence[int]], vocab: int) -> NDArray[np.int32]:
    """Return masks [rows, ceil(vocab / 32)] in which only these ids of each row are set."""
    bits = np.zeros((len(allowed), -(-vocab // 32) * 32), dtype=np.uint8)
    for row, ids in enumerate(allowed):
        bits[row, list(ids)] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)
