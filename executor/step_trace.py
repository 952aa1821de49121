"""Keeping one step whole, for a report of a fault: `--trace`.

An executor around another one follows what the device is told. When the results of the wanted step
are there it writes the step in a form that runs on a fresh device, with the pages that its requests
had filled: they only grow, and nobody else gets them before the step is settled. Until then it
costs the host a walk over the requests of each step; afterwards it only passes calls on.
"""

from __future__ import annotations

import logging
import platform
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from camshaft.contracts.executor import Executor
from camshaft.errors import CamshaftError

from .late import LateExecutor
from .slot_history import SlotHistory, rebuilt
from .torch_executor import TorchExecutor
from .trace_files import HEAD, MASKS, STEP, TraceHead, array_name, write_trace
from .traced_rows import top_logits, traced_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from camshaft.contracts.moves import Moved, PageMove, Tray
    from camshaft.step import Step, StepOutput

    from .slot_history import SlotAt
    from .trace_files import TraceOrder
    from .traced_rows import TopLogits

_log = logging.getLogger("camshaft.trace")

MOST_BYTES = 2**30
"""Of pages in a trace."""


@dataclass(slots=True)
class _Kept:
    """A step in flight, and what a trace of it needs."""

    step: Step
    slots: list[SlotAt]
    number: int
    masks: NDArray[np.int32] | None = None
    logits: TopLogits | None = None
    error: str = ""


def trace(
    executor: Executor,
    order: TraceOrder,
    *,
    recipe: Mapping[str, Any],
    recipe_name: str,
    page_tokens: int,
) -> Executor:
    """Return an executor that runs as the given one does and keeps one step.

    Raises:
        CamshaftError: It is one that has no pages to keep.
    """

    def tracing(inner: Executor) -> TracingExecutor:
        if not isinstance(inner, TorchExecutor):
            raise CamshaftError("--trace needs `engine.executor: torch` or `late`")
        return TracingExecutor(
            inner, order, recipe=recipe, recipe_name=recipe_name, page_tokens=page_tokens
        )

    if isinstance(executor, LateExecutor):
        executor.inner = tracing(executor.inner)
        return executor
    return tracing(executor)


class TracingExecutor(Executor):
    """Passes all calls on, and writes one step to a folder."""

    def __init__(
        self,
        inner: TorchExecutor,
        order: TraceOrder,
        *,
        recipe: Mapping[str, Any],
        recipe_name: str,
        page_tokens: int,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        """Begin to follow; nothing may be open on the device.

        Args:
            inner: What runs the steps.
            order: What is to be kept.
            recipe: As composed.
            recipe_name: Its file.
            page_tokens: Of a page.
            most_bytes: Of pages; a step that has more is not kept.
        """
        self.inner = inner
        self.wants_fresh = inner.wants_fresh
        self.moves_pages = inner.moves_pages
        self._order = order
        self._recipe = {name: part for name, part in recipe.items() if name != "server"}
        self._recipe_name = recipe_name
        self._page_tokens = page_tokens
        self._most_bytes = most_bytes
        self._history = SlotHistory(len(inner.parts.groups))
        self._flying: dict[int, _Kept] = {}
        self._launched = 0
        self._failed: _Kept | None = None
        self._folder = Path(order.folder)
        self._done = (self._folder / HEAD).exists()  # by an engine that this one stands in for

    @property
    def immediate(self) -> bool:  # type: ignore[override]
        """See `Executor.immediate`."""
        return self.inner.immediate

    def complete(self) -> bool:
        """See `Executor.complete`."""
        return self.inner.complete()

    def launch(self, step: Step) -> None:
        """See `Executor.launch`."""
        if self._done:
            self.inner.launch(step)
            return
        self._forget_failed("another step began before its tokens were known")
        self._launched += 1
        kept = _Kept(step, self._history.launch(step), self._launched)
        self._flying[step.id] = kept
        try:
            self.inner.launch(step)
        except Exception as error:
            self._raised(kept, error)
            raise

    def sample(self, step: int, masks: NDArray[np.int32] | None = None) -> None:
        """See `Executor.sample`."""
        kept = self._flying.get(step)
        if kept is None:
            self.inner.sample(step, masks)
            return
        kept.masks = masks
        if self._order.step is not None and kept.number >= self._order.step:
            kept.logits = top_logits(self.inner.logits_of(step))
        try:
            self.inner.sample(step, masks)
        except Exception as error:
            self._raised(kept, error)
            raise

    def wait(self, step: int) -> StepOutput:
        """See `Executor.wait`."""
        output = self.inner.wait(step)
        kept = self._flying.pop(step, None)
        if kept is None or self._done:
            return output
        if self._order.step is None and not output.finite.all():
            self._write(kept, "its logits are not finite", output)
        elif self._order.step is not None and kept.number >= self._order.step:
            self._write(kept, "it was asked for", output)
        self._history.settle(output)
        self._write_failed()
        return output

    def _raised(self, kept: _Kept, error: Exception) -> None:
        """Keep a step that raised until those before it are settled: its tokens come of them."""
        del self._flying[kept.step.id]
        self._history.drop(kept.step.id)
        if self._order.step is None and not self._done:
            kept.error = f"it raised {type(error).__name__}: {error}"
            self._failed = kept
            self._write_failed()

    def _write_failed(self) -> None:
        if self._failed is not None and not self._flying:
            self._write(self._failed, self._failed.error, None)
            self._failed = None

    def _forget_failed(self, why: str) -> None:
        if self._failed is not None:
            _log.warning("step %d could not be traced: %s", self._failed.step.id, why)
            self._failed = None

    def _write(self, kept: _Kept, reason: str, output: StepOutput | None) -> None:
        """Write the trace; what goes wrong is told, and ends nothing else."""
        try:
            self.inner.complete()  # later steps write to the same pages
            self._write_step(kept, reason, output)
        except Exception as error:  # noqa: BLE001 - a device that failed, a full disk: the engine goes on
            _log.warning("step %d could not be traced: %s", kept.step.id, error)
            self._done = True

    def _write_step(self, kept: _Kept, reason: str, output: StepOutput | None) -> None:
        step, pages = rebuilt(kept.step, kept.slots, self._page_tokens)
        held = self._bytes(pages)
        if held > self._most_bytes:
            _log.warning(
                "step %d is not traced: its pages have %d MiB, and a trace at most %d MiB",
                kept.step.id,
                held >> 20,
                self._most_bytes >> 20,
            )
            return
        arrays: dict[str, NDArray[Any]] = {STEP: step.pack()}
        if kept.masks is not None:
            arrays[MASKS] = kept.masks
        for index, numbers in enumerate(pages):
            arrays |= self._content(index, numbers)
        tables = [step.write_pages[place] for place in range(len(step.write_pages))]
        groups = self.inner.parts.groups
        head = TraceHead(
            reason=reason,
            step=kept.step.id,
            versions=_versions(),
            device=self.inner.parts.hardware.facts().name,
            recipe_name=self._recipe_name,
            recipe=self._recipe,
            page_tokens=self._page_tokens,
            pages=[len(one) for one in pages],
            longest_table=max(map(len, tables)),
            layouts=[repr(one.decode.kv_layout()) for one in groups],
            rows=traced_rows(kept.step, output, kept.logits),
        )
        write_trace(self._folder, head, arrays)
        self._done = True
        _log.warning("step %d was traced: %s", kept.step.id, self._folder)

    def _bytes(self, pages: Sequence[Sequence[int]]) -> int:
        groups = self.inner.parts.groups
        return sum(
            len(numbers) * tensor[0].numel() * tensor.element_size()
            for group, numbers in zip(groups, pages, strict=True)
            for tensor in group.all_fields()
        )

    def _content(self, index: int, numbers: Sequence[int]) -> dict[str, NDArray[Any]]:
        """Return the bytes of pages of a group."""
        found: dict[str, NDArray[Any]] = {}
        for layer, fields in self.inner.parts.groups[index].fields.items():
            for name, tensor in fields.items():
                at = torch.tensor(numbers, dtype=torch.int64, device=tensor.device)
                taken = tensor[at].contiguous().view(len(numbers), -1).view(torch.uint8)
                found[array_name(index, layer, name)] = taken.cpu().numpy()
        return found

    def tray(self, group: int, pages: int) -> Tray:
        """See `Executor.tray`."""
        return self.inner.tray(group, pages)

    def move(self, exports: Sequence[PageMove], loads: Sequence[PageMove]) -> None:
        """See `Executor.move`."""
        self.inner.move(exports, loads)

    def moved(self) -> list[Moved]:
        """See `Executor.moved`."""
        return self.inner.moved()

    def drain(self) -> None:
        """See `Executor.drain`."""
        self.inner.drain()

    def sleep(self) -> int:
        """See `Executor.sleep`."""
        return self.inner.sleep()

    def wake(self) -> None:
        """See `Executor.wake`."""
        self.inner.wake()

    def close(self) -> None:
        """See `Executor.close`."""
        self.inner.close()


def _versions() -> dict[str, str]:
    found = {"camshaft": version("camshaft"), "python": sys.version.split()[0]}
    return found | {"torch": str(torch.__version__), "platform": platform.platform()}
