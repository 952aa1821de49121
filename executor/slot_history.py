"""What the device knows of each slot, followed on the host: to tell what a step began with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.contracts.scheduler import Rows
from camshaft.step import FROM_DEVICE, Admissions, Ragged, Step, int32

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from camshaft.step import StepOutput


@dataclass(slots=True)
class SlotAt:
    """A slot as a step finds it.

    Attributes:
        admitted: Its row of each array of `Admissions`, as it was taken.
        outputs: Ids that were chosen since; the list grows with later ones.
        known: How many of them are older than the step, once those in between are settled.
        tables: Pages of its sequence, in each group.
    """

    admitted: dict[str, Any]
    outputs: list[int]
    known: int
    tables: list[list[int]]


@dataclass(slots=True)
class _Slot:
    admitted: dict[str, Any]
    outputs: list[int] = field(default_factory=list)
    launched: int = 0
    tables: list[list[int]] = field(default_factory=list)


class SlotHistory:
    """Follows every step, in the order of launches, and every result."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._slots: dict[int, _Slot] = {}
        self._rows: dict[int, list[_Slot]] = {}

    def launch(self, step: Step) -> list[SlotAt]:
        """Take note of a step; return what it begins with, for each of its requests."""
        for row, slot in enumerate(step.admissions.slots.tolist()):
            tables: list[list[int]] = [[] for _ in range(self._groups)]
            self._slots[slot] = _Slot(_row(step.admissions, row), tables=tables)
        for place, slot in enumerate(step.write_slot.tolist()):
            if slot in self._slots:
                table = self._slots[slot].tables[step.write_group.item(place)]
                pages = step.write_pages[place].tolist()
                first = step.write_first.item(place)
                table.extend([0] * (first - len(table)))
                table[first : first + len(pages)] = pages
        slots = [self._slots[slot] for slot in step.slots.tolist()]
        self._rows[step.id] = slots
        found = [
            SlotAt(one.admitted, one.outputs, one.launched, [list(table) for table in one.tables])
            for one in slots
        ]
        for one, rows in zip(slots, step.rows.tolist(), strict=True):
            one.launched += rows >= Rows.LAST
        return found

    def settle(self, output: StepOutput) -> None:
        """Take note of what a step chose."""
        for row, slot in enumerate(self._rows.pop(output.id)):
            slot.outputs += output.tokens[row, : output.counts.item(row)].tolist()

    def drop(self, step: int) -> None:
        """Forget a step that failed."""
        self._rows.pop(step, None)


def rebuilt(step: Step, slots: Sequence[SlotAt], page_tokens: int) -> tuple[Step, list[list[int]]]:
    """Return a step that runs on a fresh device as `step` did, and the pages that it needs.

    Everything that the device knew is in it: all its slots are admitted, all tables are written,
    and no token comes from the device. Pages are numbered anew, from 1.

    Args:
        step: As it was launched.
        slots: As it found them.
        page_tokens: Of a page.

    Returns:
        The step, and the old number of each page of each group, by the new one less 1.
    """
    numbers: list[dict[int, int]] = [{0: 0} for _ in slots[0].tables]
    writes: list[tuple[int, int, list[int]]] = []
    lengths = np.diff(step.starts)
    for row, one in enumerate(slots):
        count = -(-(step.context.item(row) + lengths.item(row)) // page_tokens)
        for group, table in enumerate(one.tables):
            known = numbers[group]
            pages = [known.setdefault(page, len(known)) for page in table[:count]]
            writes.append((group, step.slots.item(row), pages))
    tokens = step.tokens.copy()
    for row, begin in enumerate(step.starts[:-1].tolist()):
        if tokens[begin] == FROM_DEVICE:
            tokens[begin] = slots[row].outputs[slots[row].known - 1]
    made = replace(
        step,
        tokens=tokens,
        nano_batch=int32(),
        admissions=_admissions(step, slots),
        write_group=int32([group for group, _, _ in writes]),
        write_slot=int32([slot for _, slot, _ in writes]),
        write_first=np.zeros(len(writes), dtype=np.int32),
        write_pages=Ragged.of([pages for _, _, pages in writes]),
        copies=np.zeros((0, 3), dtype=np.int32),
        fresh=np.zeros((0, 2), dtype=np.int32),
    )
    return made, [[old for old in one if old] for one in numbers]


def _row(admissions: Admissions, row: int) -> dict[str, Any]:
    """Return what is said of one slot; 0 where an array is empty because all are."""
    found: dict[str, Any] = {}
    for one in fields(admissions):
        value = getattr(admissions, one.name)
        if isinstance(value, Ragged):
            found[one.name] = value[row].tolist() if len(value) else []
        else:
            found[one.name] = value[row].copy() if len(value) else value.dtype.type(0)
    return found


def _admissions(step: Step, slots: Sequence[SlotAt]) -> Admissions:
    rows = []
    for place, one in enumerate(slots):
        since = one.outputs[: one.known]
        row = one.admitted | {
            "slots": step.slots[place],
            "context": step.context[place],
            "produced": one.admitted["produced"] + len(since),
        }
        if one.admitted["prompt"]:  # its parameters need the history
            row["outputs"] = [*one.admitted["outputs"], *since]
        rows.append(row)
    columns: dict[str, Any] = {one.name: _column(one.name, rows) for one in fields(Admissions)}
    return Admissions(**columns)


def _column(name: str, rows: Sequence[dict[str, Any]]) -> Ragged | NDArray[Any]:
    like = getattr(Admissions(), name)
    values = [row[name] for row in rows]
    return Ragged.of(values) if isinstance(like, Ragged) else np.array(values, dtype=like.dtype)
