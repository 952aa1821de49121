"""The requests of a traced step: what they were, what they got, and their greatest logits."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .trace_files import TOP, TracedRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from camshaft.step import Step, StepOutput


class TopLogits(NamedTuple):
    """The greatest logits of rows of a step, on the device.

    Attributes:
        where: int32 [N] places of their requests.
        ids: int64 [N, TOP].
        values: float32 [N, TOP].
    """

    where: NDArray[np.int32]
    ids: torch.Tensor
    values: torch.Tensor


def top_logits(found: tuple[NDArray[np.int32], torch.Tensor] | None) -> TopLogits | None:
    """Return the greatest logits of what `TorchExecutor.logits_of` returned."""
    if found is None:
        return None
    where, logits = found
    best = logits.float().topk(min(TOP, logits.shape[1]), dim=1)
    return TopLogits(where, best.indices, best.values)


def traced_rows(
    step: Step, output: StepOutput | None, logits: TopLogits | None = None
) -> list[TracedRow]:
    """Describe the requests of a step, and what came of it if that is known."""
    rows = [
        TracedRow(slot=slot, context=context, tokens=tokens)
        for slot, context, tokens in zip(
            step.slots.tolist(), step.context.tolist(), np.diff(step.starts).tolist(), strict=True
        )
    ]
    if output is not None:
        for place, one in enumerate(rows):
            one.chosen = output.tokens[place, : output.counts.item(place)].tolist()
            one.finite = bool(output.finite[place])
    if logits is not None:
        _add_logits(rows, logits)
    return rows


def _add_logits(rows: Sequence[TracedRow], found: TopLogits) -> None:
    """Note the greatest logits of rows that have some; not those that JSON cannot hold."""
    ids, values = found.ids.tolist(), found.values.tolist()
    for place, best, logits in zip(found.where.tolist(), ids, values, strict=True):
        finite = [at for at, one in enumerate(logits) if isfinite(one)]
        rows[place].top_ids = [best[at] for at in finite]
        rows[place].top_logits = [logits[at] for at in finite]
