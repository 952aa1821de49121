"""What the operations of a step cost, looked up among measured ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .operations import Operation
from .packing import Packing, Task, pack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LINEARS = ("qkv", "out", "gate_up", "down")
"""Of a layer, in order; norms, rotation and activation belong to the one beside them."""


class Mix(NamedTuple):
    """What a step, or a part of one, holds: requests that decode, and prompts of one length."""

    decodes: int
    prompts: int

    @property
    def requests(self) -> int:
        """Both together."""
        return self.decodes + self.prompts

    def tokens(self, length: int) -> int:
        """Return the tokens, with prompts of `length`."""
        return self.decodes + self.prompts * length


@dataclass(frozen=True, slots=True)
class Curve:
    """An operation at different sizes.

    Attributes:
        points: Measured, by size. One that took longer than a larger one was disturbed.
    """

    points: Mapping[int, Operation]

    def at(self, size: int) -> Operation:
        """Return it at a size: linear between points, and like the nearest one beyond them.

        Below the smallest point little changes: there weights are read, or a launch is waited for.
        """
        sizes = sorted(self.points)
        known = [self.points[one] for one in sizes]
        rows = np.array([(one.seconds, *one.busy) for one in known])
        rows = np.minimum.accumulate(rows[::-1])[::-1]
        seconds, *busy = (float(np.interp(size, sizes, column)) for column in rows.T)
        return Operation(known[0].name, seconds, (busy[0], busy[1], busy[2]))


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the devices of a tensor-parallel engine.

    Attributes:
        ranks: How many devices.
        bytes_s: That one of them sends per second, while it receives as many.
        wait_s: Seconds that the smallest all-reduce takes.
        token_bytes: Of a token's hidden state.
    """

    ranks: int
    bytes_s: float
    wait_s: float
    token_bytes: int

    def all_reduce(self, tokens: int) -> Operation:
        """Return the sum over all devices, in a ring: each sends all but its share, twice."""
        sent = 2 * (self.ranks - 1) / self.ranks * tokens * self.token_bytes
        seconds = self.wait_s + sent / self.bytes_s
        return Operation("all-reduce", seconds, (0.0, 0.0, seconds))


@dataclass(frozen=True, slots=True)
class Host:
    """Seconds that the host needs to launch a step, or a part of one.

    Attributes:
        decode_s: In which all requests decode.
        mixed_s: With prompts.
    """

    decode_s: float
    mixed_s: float

    def seconds(self, parts: Sequence[Mix]) -> float:
        """Return what all parts of a step take."""
        return sum(self.mixed_s if one.prompts else self.decode_s for one in parts)


@dataclass(frozen=True, slots=True)
class Costs:
    """All that is known of a model on a device.

    Attributes:
        layers: Of the model.
        length: Tokens of each prompt.
        linears: By name, one layer each, by tokens.
        decode: Attention of a layer, by requests that decode.
        prefill: The same by prompts.
        ends: Embedding and head, by requests.
        overlap: See `pack`.
        host: What launches cost.
        link: None for a single device.
    """

    layers: int
    length: int
    linears: Mapping[str, Curve]
    decode: Curve
    prefill: Curve
    ends: Curve
    overlap: float
    host: Host
    link: Link | None = None

    @property
    def overlaps(self) -> bool:
        """Whether anything can run beside anything else."""
        return self.overlap > 0 or self.link is not None

    def layer(self, mix: Mix) -> list[Operation]:
        """Return the operations of a layer, in order."""
        tokens = mix.tokens(self.length)
        qkv, out, gate_up, down = (self.linears[name].at(tokens) for name in LINEARS)
        attention = []
        if mix.decodes:
            attention.append(self.decode.at(mix.decodes))
        if mix.prompts:
            attention.append(self.prefill.at(mix.prompts))
        reduce = [] if self.link is None else [self.link.all_reduce(tokens)]
        return [qkv, *attention, out, *reduce, gate_up, down, *reduce]

    def tasks(self, parts: Sequence[Mix]) -> list[Task]:
        """Return a step in parts: each goes through the layers alone, and all meet at the head."""
        tasks: list[Task] = []
        lasts: list[int] = []
        for mix in parts:
            before: tuple[int, ...] = ()
            for one in self.layer(mix) * self.layers:
                tasks.append(Task(one, before))
                before = (len(tasks) - 1,)
            lasts += before
        tasks.append(Task(self.ends.at(sum(one.requests for one in parts)), tuple(lasts)))
        return tasks

    def step(self, parts: Sequence[Mix]) -> Packing:
        """Predict a step on the device, as if launches cost nothing."""
        return pack(self.tasks(parts), self.overlap)

    def seconds(self, parts: Sequence[Mix]) -> float:
        """Predict a step: what device or host takes, whichever is longer."""
        return max(self.step(parts).seconds, self.host.seconds(parts))
