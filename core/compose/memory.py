"""The memory plan: what weights take, and how many pages fit in the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.executor.groups import page_bytes

from ..errors import DeviceError

if TYPE_CHECKING:
    from ..contracts.hardware import MemoryReport
    from .draw import Drawing

AUTO_SHARE = 0.5
"""Share of the free memory that `cache.memory: auto` takes where nobody measured a step."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of an engine.

    Attributes:
        weight_bytes: Resident weights.
        group_page_bytes: One page of each group, all its layers.
        pages: Pages in each group's pool, the null page not counted.
        page_tokens: Tokens in a page.
        room: Longest sequence that fits model and pools.
    """

    weight_bytes: int
    group_page_bytes: tuple[int, ...]
    pages: int
    page_tokens: int
    room: int

    @property
    def cache_bytes(self) -> int:
        """Bytes of all pools, null pages included."""
        return (self.pages + 1) * sum(self.group_page_bytes)

    @property
    def pool_tokens(self) -> int:
        """Tokens that the pools hold."""
        return self.pages * self.page_tokens


def group_page_bytes(drawing: Drawing) -> tuple[int, ...]:
    """Return the bytes of one page of each group, all its layers."""
    return tuple(
        page_bytes(decode.kv_layout()) * len(group.layers)
        for group, (_, decode) in zip(drawing.groups, drawing.attention, strict=True)
    )


def plan_memory(
    drawing: Drawing, weight_bytes: int, memory: MemoryReport, step_bytes: int = 0
) -> MemoryPlan:
    """Divide memory into pages.

    Args:
        drawing: The parts.
        weight_bytes: Already resident.
        memory: As it is with the weights loaded.
        step_bytes: What steps need beside weights and pages, measured; 0 if it was not.

    Raises:
        DeviceError: Not even a short sequence fits; says how much is free and how much is needed.
    """
    cache, scheduler = drawing.recipe.cache, drawing.recipe.scheduler
    each = group_page_bytes(drawing)
    of_a_sequence = -(-drawing.max_context // cache.page_tokens)
    wanted = of_a_sequence * scheduler.max_running
    if cache.memory == "auto":
        rest = memory.free - step_bytes if step_bytes else int(memory.free * AUTO_SHARE)
        pages = min(wanted, rest // sum(each) - 1)
    else:
        pages = cache.memory // sum(each) - 1
    if pages < 2:
        needed = 3 * sum(each)
        have = memory.free if cache.memory == "auto" else cache.memory
        raise DeviceError(
            f"cache.memory: {have} bytes hold fewer than 2 pages of {cache.page_tokens} tokens; "
            f"give at least {needed} bytes ({memory.free} are free)"
        )
    total = (pages + 1) * sum(each)
    if total > memory.free:
        raise DeviceError(
            f"cache.memory: {total / 2**20:.0f} MiB are asked for and "
            f"{memory.free / 2**20:.0f} MiB are free; lower it, or say auto"
        )
    room = min(drawing.max_context, pages * cache.page_tokens)
    return MemoryPlan(weight_bytes, each, pages, cache.page_tokens, room)
