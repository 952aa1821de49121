"""The least time that each part of a step can take on a device.

Counted are the bytes that must be read or written once and the operations of the products: what a
perfect kernel could not do without. The longer of bytes over bandwidth and operations over rate is
the limit of a step. Keys and values are counted for each request, shared or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .ranges import DECODE, PREFILL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .ranges import Linear, Ranges, StepWork
    from .rates import Rates


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One KV group.

    Attributes:
        layers: How many.
        heads: H.
        dims: Of a query and of a value together.
        window: Tokens that a query sees; 0 is all.
        token_bytes: Keys and values of a token, all layers.
    """

    layers: int
    heads: int
    dims: int
    window: int
    token_bytes: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's work is counted with.

    Attributes:
        hidden: C.
        layers: How many.
        vocab: V.
        itemsize: Bytes of an activation.
        attention: Of each KV group.
    """

    hidden: int
    layers: int
    vocab: int
    itemsize: int
    attention: tuple[AttentionShape, ...]


@dataclass(slots=True)
class Work:
    """Bytes and operations of a part in one step."""

    bytes: float = 0.0
    flops: float = 0.0


@dataclass(slots=True)
class Limit:
    """Of a part, over all steps.

    Attributes:
        us: Microseconds.
        memory_us: Of these, in steps that bandwidth limits.
    """

    us: float = 0.0
    memory_us: float = 0.0

    @property
    def bound(self) -> str:
        """What limits most of it."""
        return "memory" if 2 * self.memory_us >= self.us else "compute"


def limits(ranges: Ranges, shape: Shape, rates: Rates) -> dict[str, Limit]:
    """Return the limit of each part that is counted, over the steps that `ranges` saw."""
    found: dict[str, Limit] = {}
    for step in ranges.steps:
        for part, work in work_of(step, ranges.linears, shape).items():
            memory, compute = work.bytes / rates.bytes_s, work.flops / rates.gemm_flop_s
            if memory or compute:
                limit = found.setdefault(part, Limit())
                limit.us += 1e6 * max(memory, compute)
                limit.memory_us += 1e6 * memory if memory >= compute else 0.0
    return found


def work_of(
    step: StepWork, linears: Mapping[str, Sequence[Linear]], shape: Shape
) -> dict[str, Work]:
    """Return what each part of a step must do at least."""
    tokens = int(step.lengths.sum())
    work = {
        name: _linear(every, step.rows if name == "head" else tokens, shape.itemsize)
        for name, every in linears.items()
    }
    single = step.lengths == 1
    for part, chosen in ((DECODE, single), (PREFILL, ~single)):
        work[part] = _attention(step.lengths[chosen], step.context[chosen], shape)
    row = tokens * shape.itemsize
    # each norm reads two rows, and writes their sum and its norm
    work["norm"] = Work((2 * shape.layers + 1) * 4 * row * shape.hidden)
    work["embed"] = Work(2 * row * shape.hidden)
    work["activation"] = Work(row * sum(1.5 * one.outputs for one in linears.get("gate_up", ())))
    work["rope"] = Work(row * sum(2 * one.outputs for one in linears.get("qkv", ())))
    work["sampling"] = Work(step.rows * shape.vocab * shape.itemsize)
    return work


def _linear(every: Sequence[Linear], rows: int, itemsize: int) -> Work:
    if not rows:
        return Work()
    seen = [one for one in every if one.inputs]
    return Work(
        bytes=sum(one.weight_bytes + rows * (one.inputs + one.outputs) * itemsize for one in seen),
        flops=sum(2.0 * rows * one.inputs * one.outputs for one in seen),
    )


def _attention(lengths: NDArray[np.int32], context: NDArray[np.int32], shape: Shape) -> Work:
    """Count queries, results, and the keys and values that are seen."""
    work = Work()
    for group in shape.attention:
        keys = pairs = 0
        for count, before in zip(lengths.tolist(), context.tolist(), strict=True):
            seen = np.arange(before + 1, before + count + 1)
            pairs += int((np.minimum(seen, group.window) if group.window else seen).sum())
            whole = before + count
            keys += min(whole, group.window + count - 1) if group.window else whole
        work.bytes += keys * group.token_bytes
        work.bytes += int(lengths.sum()) * group.heads * group.dims * shape.itemsize * group.layers
        work.flops += 2.0 * group.heads * group.dims * pairs * group.layers
    return work
