"""Observer: is told what happened. The only plugin calls near the hot path."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..request import Request, RequestOutput
    from .cache import CacheEvent
    from .scheduler import StepReport


class Observer:
    """Constructed as `Observer(settings)`. Every method is optional and must not raise or block.

    An observer that raises is reported once and not called again; the engine goes on.
    """

    def on_start(self, description: dict[str, object]) -> None:
        """Engine composed and ready; `description` is the composed recipe."""

    def on_stop(self) -> None:
        """Engine stopping."""

    def on_arrival(self, request: Request) -> None:
        """Request accepted into the waiting queue."""

    def on_finish(self, request: Request, output: RequestOutput) -> None:
        """Request ended; `output.finish` says why."""

    def on_step(self, report: StepReport) -> None:
        """Step settled."""

    def on_cache(self, events: list[CacheEvent]) -> None:
        """Pages stored or evicted since the last call."""
