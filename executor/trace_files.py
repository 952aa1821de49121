"""A traced step on disk: what it ran on, what it was given, and what came of it.

A folder with `trace.json`, which people can read, and `arrays.npz`: the packed step and the content
of the pages that it attended to. It holds token ids, and so what the requests said.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from camshaft.errors import CamshaftError

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = 1
HEAD, ARRAYS = "trace.json", "arrays.npz"
STEP, MASKS = "step", "masks"
TOP = 32
"""Logits of a row that are kept: the greatest."""


class TraceOrder(msgspec.Struct, frozen=True):
    """Which step is to be kept.

    Attributes:
        folder: Where it is written; it must not hold a trace.
        step: Which one from now on, from 1; None is the first that fails, by an error or by logits
            that are not finite.
    """

    folder: str
    step: int | None = 1


class TraceError(CamshaftError):
    """A trace that cannot be read."""


class TracedRow(msgspec.Struct, kw_only=True):
    """A request in the step.

    Attributes:
        slot: Of the device.
        context: Tokens in pages before the step.
        tokens: In the step.
        chosen: Ids that came of it; none if it chose none, or failed.
        finite: Whether its logits were.
        top_ids: Of its greatest logits, the greatest first; empty if they were not at hand.
        top_logits: They.
    """

    slot: int
    context: int
    tokens: int
    chosen: list[int] = []
    finite: bool = True
    top_ids: list[int] = []
    top_logits: list[float] = []


class TraceHead(msgspec.Struct, kw_only=True):
    """What `trace.json` holds.

    Attributes:
        format: Of the folder.
        reason: Why this step was kept.
        step: Its id.
        versions: Of what ran, by name.
        device: It ran on.
        recipe_name: File.
        recipe: As composed, without its server.
        page_tokens: Tokens of a page.
        pages: Pages in the trace, of each KV group; they are numbered from 1.
        longest_table: Pages of the longest sequence.
        layouts: How a page lies in memory, of each group.
        rows: Its requests, in its order.
        bytes: Of the file with arrays.
        sha256: Of that file.
    """

    format: int = FORMAT
    reason: str
    step: int
    versions: dict[str, str]
    device: str
    recipe_name: str
    recipe: dict[str, Any]
    page_tokens: int
    pages: list[int]
    longest_table: int
    layouts: list[str]
    rows: list[TracedRow]
    bytes: int = 0
    sha256: str = ""


def check_order(order: TraceOrder) -> None:
    """Refuse a folder that holds a trace.

    Raises:
        TraceError: It does.
    """
    if (Path(order.folder) / HEAD).exists():
        raise TraceError(f"{order.folder} holds a trace already; name another folder")


def write_trace(folder: Path, head: TraceHead, arrays: dict[str, NDArray[Any]]) -> None:
    """Write a trace; the head comes last, so that a folder that has one is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type] # its stub forgets keywords of arrays
    content = packed.getbuffer()
    (folder / ARRAYS).write_bytes(content)
    head.bytes, head.sha256 = len(content), hashlib.sha256(content).hexdigest()
    text = msgspec.json.format(msgspec.json.encode(head), indent=1)
    (folder / HEAD).write_bytes(text + b"\n")


def read_trace(folder: Path) -> tuple[TraceHead, dict[str, NDArray[Any]]]:
    """Read a trace.

    Raises:
        TraceError: It is none, or damaged; names the file and the place.
    """
    path = folder / HEAD
    try:
        head = msgspec.json.decode(path.read_bytes(), type=TraceHead)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}; is {folder} the folder of a trace?") from None
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {error}; the file is damaged") from None
    if head.format != FORMAT:
        raise TraceError(f"{path}: format {head.format}; this version reads {FORMAT}")
    return head, _arrays(folder / ARRAYS, head)


def _arrays(path: Path, head: TraceHead) -> dict[str, NDArray[Any]]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    if len(content) != head.bytes:
        raise TraceError(f"{path}: {len(content)} bytes, and {HEAD} says {head.bytes}: it is cut")
    if hashlib.sha256(content).hexdigest() != head.sha256:
        raise TraceError(f"{path}: its digest is not the one in {HEAD}: it is damaged")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (ValueError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: {error}") from None


def array_name(group: int, layer: int, field: str) -> str:
    """Return what the pages of a field are called: [n, bytes of a page] uint8."""
    return f"group{group}.layer{layer}.{field}"
