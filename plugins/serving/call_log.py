"""The line that is logged when the making of an answer ends."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from camshaft.client import EngineDiedError
from camshaft.errors import RequestError

from .logs import tell

if TYPE_CHECKING:
    from camshaft.generate import Call, Delta, Generation

CLIENT_GONE = 499
"""No status that is sent: the client left before the end of its answer."""


class CallLog:
    """Follows one call from its making on."""

    def __init__(self, answer_id: str, call: Call) -> None:
        self._id = answer_id
        self._call = call
        self._began = time.monotonic()
        self._first_s: float | None = None
        self._finish: dict[int, str] = {}

    def observe(self, delta: Delta) -> None:
        """Take note of what a step brought."""
        if self._first_s is None:
            self._first_s = time.monotonic() - self._began
        if delta.finish is not None:
            self._finish[delta.index] = delta.finish

    def ended(self, generation: Generation, error: BaseException | None) -> None:
        """Write the line.

        Args:
            generation: What was made.
            error: What ended it, or None if it came to its end.
        """
        usage, status = generation.usage, _status(error)
        total_s = time.monotonic() - self._began
        finish = [self._finish.get(index) for index in range(self._call.choices)]
        fields = {
            "id": self._id,
            "tenant": self._call.tenant,
            "status": status,
            "code": error.code if isinstance(error, RequestError) else None,
            "finish": finish,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
            "queued_ms": _ms(generation.queued_s),
            "first_ms": _ms(self._first_s),
            "total_ms": _ms(total_s),
        }
        who = f" of {self._call.tenant!r}" if self._call.tenant else ""
        how = ",".join(sorted({one or "cut" for one in finish}))
        text = (
            f"{self._id}{who} {status} {how}: {usage.prompt_tokens} tokens in, "
            f"{usage.cached_tokens} of them cached, {usage.completion_tokens} out; ms: "
            f"{fields['queued_ms']} queued, {fields['first_ms']} to the first, "
            f"{fields['total_ms']} in all"
        )
        tell("request", text, **fields)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _status(error: BaseException | None) -> int:
    match error:
        case None:
            return 200
        case RequestError():
            return error.status
        case EngineDiedError():
            return 503
        case asyncio.CancelledError() | GeneratorExit():
            return CLIENT_GONE
        case _:
            return 500
