"""What a client and its engine say to each other, in one process or between two.

Plain msgspec records: on a socket they are msgpack, and decoding makes nothing but these types.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from camshaft.info import EngineInfo
from camshaft.request import FinishReason, Request, RequestOutput

from .snapshot import Snapshot

Question = Literal["snapshot", "reset_cache", "sleep", "wake"]


class Submit(msgspec.Struct, frozen=True, tag=True):
    """Run these requests; each one that cannot run is answered with `Rejected`."""

    requests: list[Request]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End a request.

    Attributes:
        id: Which.
        finish: What it counts as: a stop string found outside is a `stop`.
        returned: Output tokens up to and with that stop string.
    """

    id: str
    finish: FinishReason = "abort"
    returned: int = 0


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Ask something, answered under the same ticket."""

    ticket: int
    what: Question


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the loop and release the device."""


Command = Submit | Abort | Ask | Stop


class Outputs(msgspec.Struct, frozen=True, tag=True):
    """Everything that one turn of the loop brought."""

    outputs: list[RequestOutput]


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """A request that the engine did not take; the fields of `RequestError`."""

    id: str
    message: str
    param: str | None = None
    code: str | None = None
    status: int = 400
    retry_after_s: float | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """To an `Ask`.

    Attributes:
        ticket: Of the question.
        snapshot: If it was for one.
        pages: That were dropped.
        freed_bytes: That were given back.
        refusal: Why nothing was done.
    """

    ticket: int
    snapshot: Snapshot | None = None
    pages: int = 0
    freed_bytes: int = 0
    refusal: str = ""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """What the engine is doing while it starts, in a few words."""

    text: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The engine takes requests from now on."""

    info: EngineInfo


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life."""


class Dead(msgspec.Struct, frozen=True, tag=True):
    """The engine ended for good.

    Attributes:
        message: Why, in a sentence.
        details: The traceback, for the operator's eyes only.
        fixable: The cause is one that a user can fix, such as a fault of the recipe.
    """

    message: str
    details: str = ""
    fixable: bool = False


Reply = Outputs | Rejected | Answer | Progress | Ready | Beat | Dead
