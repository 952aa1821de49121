"""Requests that were freed while steps of theirs were in flight: these may turn out to be wrong."""

from __future__ import annotations

from typing import Generic, TypeVar

Request = TypeVar("Request")


class Departed(Generic[Request]):
    """Remembers what is known of a request until the last step that may touch it is complete."""

    def __init__(self) -> None:
        self._by_uid: dict[int, tuple[int, Request]] = {}
        self._complete = 0  # steps count from 1

    def note(self, uid: int, step: int, request: Request) -> None:
        """Note a request that was freed; `step` is the newest that may still write for it."""
        if step > self._complete:
            self._by_uid[uid] = step, request

    def take(self, uid: int) -> Request | None:
        """Return what is known of a request, once; None if all its steps were right."""
        return self._by_uid.pop(uid, (0, None))[1]

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete."""
        self._complete = max(self._complete, step)
        for uid in [uid for uid, (last, _) in self._by_uid.items() if last <= step]:
            del self._by_uid[uid]
