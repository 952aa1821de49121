"""Calls observers, skips the calls that nobody overrides, and drops one that raises."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..contracts.observer import Observer

if TYPE_CHECKING:
    from ..contracts.cache import CacheEvent
    from ..contracts.scheduler import StepReport
    from ..request import Request, RequestOutput

_log = logging.getLogger("camshaft.observers")


class Observers:
    """The observers of an engine."""

    def __init__(self, observers: list[Observer]) -> None:
        self._observers = list(observers)
        self._listening = {
            name: [one for one in observers if _overrides(one, name)]
            for name in ("on_start", "on_stop", "on_arrival", "on_finish", "on_step", "on_cache")
        }

    def on_start(self, description: dict[str, object]) -> None:
        """See `Observer`."""
        self._call("on_start", description)

    def on_stop(self) -> None:
        """See `Observer`."""
        self._call("on_stop")

    def on_arrival(self, request: Request) -> None:
        """See `Observer`."""
        self._call("on_arrival", request)

    def on_finish(self, request: Request, output: RequestOutput) -> None:
        """See `Observer`."""
        self._call("on_finish", request, output)

    def on_step(self, report: StepReport) -> None:
        """See `Observer`."""
        self._call("on_step", report)

    def on_cache(self, events: list[CacheEvent]) -> None:
        """See `Observer`."""
        self._call("on_cache", events)

    def _call(self, name: str, *args: object) -> None:
        for observer in list(self._listening[name]):
            try:
                getattr(observer, name)(*args)
            except Exception:  # noqa: BLE001 - whatever a plugin does
                _log.exception("observer %s raised and is dropped", type(observer).__name__)
                for listeners in self._listening.values():
                    if observer in listeners:
                        listeners.remove(observer)


def _overrides(observer: Observer, name: str) -> bool:
    return getattr(type(observer), name, None) is not getattr(Observer, name)
