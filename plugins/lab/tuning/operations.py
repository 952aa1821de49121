"""An operation of a step as it takes part in a plan: its time alone, and what it needs of what."""

from __future__ import annotations

from dataclasses import dataclass

RESOURCES = ("compute", "memory", "network")
COMPUTE, MEMORY, NETWORK = range(3)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        name: Of what it does.
        seconds: That it takes alone.
        busy: Seconds for which it would keep each of `RESOURCES` busy at that one's best rate. None
            is longer than `seconds`.
    """

    name: str
    seconds: float
    busy: tuple[float, float, float]

    @property
    def bound(self) -> int:
        """Which resource it needs most."""
        return self.busy.index(max(self.busy))

    def use(self, resource: int) -> float:
        """Return the share of a resource that it takes while it runs alone."""
        return min(1.0, self.busy[resource] / self.seconds) if self.seconds else 0.0


def joined(name: str, *parts: Operation) -> Operation:
    """Return operations that run one after the other as one."""
    compute, memory, network = (sum(one.busy[place] for one in parts) for place in range(3))
    return Operation(name, sum(one.seconds for one in parts), (compute, memory, network))
