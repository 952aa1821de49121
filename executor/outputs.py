"""From what a step left on the device to its output on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.step import LogprobRows, StepOutput

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from camshaft.contracts.sampling import DeviceLogprobs


def empty_output(step: int, requests: int, width: int) -> StepOutput:
    """Return the output of a step without tokens, with room for `width` of each request."""
    return StepOutput(
        step,
        np.zeros((requests, width), dtype=np.int32),
        np.zeros(requests, dtype=np.int32),
        np.ones(requests, dtype=np.bool_),
    )


def recorded_output(
    step: int, requests: int, where: NDArray[np.int32] | None, landed: NDArray[np.int64]
) -> StepOutput:
    """Return the output of a recorded choice.

    Args:
        step: Its id.
        requests: B.
        where: Places of the requests that chose; None is all.
        landed: Their tokens, -1 for logits that were not finite, and more; copied.
    """
    output = empty_output(step, requests, 1)
    if where is None:
        where = np.arange(requests, dtype=np.int32)
    chosen = landed[: len(where)]
    output.tokens[where, 0] = np.maximum(chosen, 0)
    output.counts[where] = 1
    output.finite[where] = chosen >= 0
    return output


def logprob_tensors(one: DeviceLogprobs) -> dict[str, torch.Tensor]:
    """Return logprobs by the names under which they go to the host."""
    return {
        "request": one.request,
        "offset": one.offset,
        "chosen": one.chosen,
        "rank": one.rank,
        "ids": one.ids,
        "values": one.values,
    }


def host_logprobs(
    host: dict[str, NDArray[np.generic]], where: NDArray[np.int32]
) -> LogprobRows | None:
    """Return what `logprob_tensors` sent, if there was anything.

    Args:
        host: Everything that was sent.
        where: Places in the step of the requests that have logits.
    """
    if "chosen" not in host:
        return None
    return LogprobRows(
        row=where[host["request"].astype(np.int64)],
        offset=host["offset"].astype(np.int32),
        chosen=host["chosen"].astype(np.float32),
        rank=host["rank"].astype(np.int32),
        ids=host["ids"].astype(np.int32),
        values=host["values"].astype(np.float32),
    )
