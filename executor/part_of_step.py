"""Some requests of a step as a step of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.step import Step, int32

if TYPE_CHECKING:
    from camshaft.step import Int32


def part_of_step(step: Step, places: Int32) -> Step:
    """Return some requests of a step, in their order.

    What comes before any request of a step is left out: admissions, table writes, copies, fresh
    pages. So is what is read of prompts, and pooling.

    Args:
        step: The whole.
        places: [b] of the requests, ascending.
    """
    lengths = np.diff(step.starts)[places]
    starts = np.zeros(len(places) + 1, dtype=np.int32)
    np.cumsum(lengths, out=starts[1:])
    tokens = np.arange(starts[-1]) + np.repeat(step.starts[places] - starts[:-1], lengths)
    return Step(
        id=step.id,
        decode_requests=int(np.count_nonzero(places < step.decode_requests)),
        slots=step.slots[places],
        starts=starts,
        context=step.context[places],
        drafts=step.drafts[places],
        rows=step.rows[places],
        tokens=step.tokens[tokens],
    )


def nano_batches(step: Step) -> list[Step]:
    """Return the nano-batches of a step by their numbers."""
    numbers = step.nano_batch
    return [
        part_of_step(step, int32((numbers == number).nonzero()[0]))
        for number in np.unique(numbers).tolist()
    ]
