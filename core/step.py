"""The packed step: everything an executor must learn for one forward pass, as int32 arrays.

One `Step` goes to every rank. On the wire it is a single int32 array (`pack`), so that a device
needs one copy. Floats and 64-bit seeds travel as their bits.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields
from itertools import accumulate
from operator import attrgetter
from struct import pack
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Int32 = NDArray[np.int32]
    Float32 = NDArray[np.float32]

FORMAT = 5
"""Version of the packed form; an executor refuses another one."""

FROM_DEVICE = -1
"""Token id that stands for the slot's last token, which only the device may know."""

FROM_DRAFTS = -2
"""Token id that stands for the next draft token of the slot."""


def int32(values: Sequence[int] | NDArray[np.integer] = ()) -> Int32:
    """Return `values` as an int32 array."""
    return np.asarray(values, dtype=np.int32)


def float32(values: Sequence[float] | Float32 = ()) -> Float32:
    """Return `values` as a float32 array."""
    return np.asarray(values, dtype=np.float32)


_NOTHING = int32()


def _nothing() -> Int32:
    return _NOTHING


@dataclass(slots=True)
class Ragged:
    """Lists of different lengths: list i is `values[offsets[i]:offsets[i + 1]]`."""

    offsets: Int32
    values: Int32

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        """Join `lists`."""
        offsets = int32([*accumulate(map(len, lists), initial=0)])
        if lists and isinstance(lists[0], array):  # mostly all are
            joined = array("i")
            for one in lists:
                joined.extend(one)
            return cls(offsets, int32(joined))
        values = [value for one in lists for value in one]
        packed = bytearray(pack(f"{len(values)}i", *values))  # ten times as fast as numpy
        return cls(offsets, np.frombuffer(packed, dtype=np.int32))

    def __getitem__(self, index: int) -> Int32:
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def _empty_ragged() -> Ragged:
    return Ragged(np.zeros(1, dtype=np.int32), int32())


@dataclass(slots=True)
class Admissions:
    """Slots that change hands in this step; A of them. All their old state is void.

    Attributes:
        slots: [A].
        context: [A] tokens whose keys and values are in pages already (prefix hit).
        produced: [A] output tokens so far; above 0 after a preemption.
        offsets: [A] by what the position of a token exceeds its index; empty if all are 0.
        seeds: [A, 2] low and high half of the 64-bit seed.
        top_k: [A] 0 is off.
        min_tokens: [A].
        logprobs: [A] alternatives to report; -1 is no logprobs.
        temperature: [A], as all floats below.
        top_p: 1 is off.
        min_p: 0 is off.
        presence: Presence penalty, 0 is off.
        frequency: Frequency penalty, 0 is off.
        repetition: Repetition penalty, 1 is off.
        bias_ids: Ids with a logit bias.
        bias_values: float32 bits, parallel to `bias_ids`.
        allowed: The only ids that may be chosen; empty allows all.
        stops: Ids that cannot be chosen before `min_tokens`.
        bad_words: Sequences, each preceded by its length.
        prompt: Prompt ids, for requests whose parameters need the history.
        outputs: Output ids so far, for the same.
    """

    slots: Int32 = field(default_factory=_nothing)
    context: Int32 = field(default_factory=_nothing)
    produced: Int32 = field(default_factory=_nothing)
    offsets: Int32 = field(default_factory=_nothing)
    seeds: Int32 = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int32))
    top_k: Int32 = field(default_factory=_nothing)
    min_tokens: Int32 = field(default_factory=_nothing)
    logprobs: Int32 = field(default_factory=_nothing)
    temperature: Float32 = field(default_factory=float32)
    top_p: Float32 = field(default_factory=float32)
    min_p: Float32 = field(default_factory=float32)
    presence: Float32 = field(default_factory=float32)
    frequency: Float32 = field(default_factory=float32)
    repetition: Float32 = field(default_factory=float32)
    bias_ids: Ragged = field(default_factory=_empty_ragged)
    bias_values: Ragged = field(default_factory=_empty_ragged)
    allowed: Ragged = field(default_factory=_empty_ragged)
    stops: Ragged = field(default_factory=_empty_ragged)
    bad_words: Ragged = field(default_factory=_empty_ragged)
    prompt: Ragged = field(default_factory=_empty_ragged)
    outputs: Ragged = field(default_factory=_empty_ragged)

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(slots=True)
class Step:
    """One forward pass over a mixed batch, followed by one choice of tokens.

    Requests are ordered decode-first, so that a prefill and a decode backend each get a slice.

    Attributes:
        id: Counts up by one for each launched step.
        decode_requests: How many leading requests have a single query token and no drafts.
        slots: [B] device row of each request; no slot twice.
        starts: [B + 1] where each request's tokens begin; `starts[B]` is T.
        context: [B] upper bound of the tokens in pages before this step. The exact number is on
            the device; they differ only under speculation.
        drafts: [B] draft tokens at the end of each request's tokens.
        rows: [B] `Rows` value: which positions get logits.
        tokens: [T] ids, or `FROM_DEVICE`, or `FROM_DRAFTS`.
        nano_batch: [B] number of the nano-batch of each request, or empty. Those of different ones
            may run side by side, as none reads what another one writes; to run all at once, or in
            any order, gives the same.
        admissions: Slots that change hands.
        write_group: [W] table writes: KV group,
        write_slot: [W] slot,
        write_first: [W] first index in the slot's table,
        write_pages: and the pages, a list each.
        copies: [C, 3] group, source page, target page. Done before anything else.
        fresh: [Z, 2] group, page: pages that change hands, whose old content must not be seen.
            Filled only for executors that ask for it.
        reads: [L, 3] index into `tokens`, a token id, a number of alternatives: to report is the
            logprob of that id by the logits at that place, and the best alternatives.
        pooling: [B] number of each request's pooling in `POOLINGS`, or empty if nobody has one. Who
            has gets no logits: with its last row, of `Rows.LAST`, its vector is complete. All of
            its prompt is computed in this and earlier steps; 0 in `context` begins it anew.
    """

    id: int = 0
    decode_requests: int = 0
    slots: Int32 = field(default_factory=_nothing)
    starts: Int32 = field(default_factory=lambda: np.zeros(1, dtype=np.int32))
    context: Int32 = field(default_factory=_nothing)
    drafts: Int32 = field(default_factory=_nothing)
    rows: Int32 = field(default_factory=_nothing)
    tokens: Int32 = field(default_factory=_nothing)
    nano_batch: Int32 = field(default_factory=_nothing)
    admissions: Admissions = field(default_factory=Admissions)
    write_group: Int32 = field(default_factory=_nothing)
    write_slot: Int32 = field(default_factory=_nothing)
    write_first: Int32 = field(default_factory=_nothing)
    write_pages: Ragged = field(default_factory=_empty_ragged)
    copies: Int32 = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int32))
    fresh: Int32 = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int32))
    reads: Int32 = field(default_factory=lambda: np.zeros((0, 3), dtype=np.int32))
    pooling: Int32 = field(default_factory=_nothing)

    def pack(self) -> Int32:
        """Return the step as one int32 array: version, then each array's size and bits.

        The arrays of `admissions` come last, and are left out if there are none.
        """
        arrays = _own(self) + (_admitted(self) if len(self.admissions) else ())
        sizes = [array.size for array in arrays]
        head = int32([FORMAT, self.id, self.decode_requests, len(sizes), *sizes])
        filled = [array.reshape(-1).view(np.int32) for array in arrays if array.size]
        return np.concatenate([head, *filled])

    @classmethod
    def unpack(cls, packed: Int32) -> Step:
        """Return the step that `pack` made; its arrays are views of `packed`.

        Raises:
            ValueError: Another format.
        """
        if int(packed[0]) != FORMAT:
            raise ValueError(f"step format {int(packed[0])}, this executor reads {FORMAT}")
        step = cls(id=int(packed[1]), decode_requests=int(packed[2]))
        at = 4 + int(packed[3])
        sizes, arrays = packed[4:at].tolist(), _own(step) + _admitted(step)
        for path, like, size in zip(_NAMES, arrays, sizes, strict=False):
            array = packed[at : at + size].view(like.dtype).reshape(-1, *like.shape[1:])
            *owners, name = path.split(".")
            setattr(attrgetter(".".join(owners))(step) if owners else step, name, array)
            at += size
        return step


def _names(owner: object, before: str = "") -> list[str]:
    """List every array of a step by its path of attributes, in declaration order."""
    found: list[str] = []
    for one in fields(owner):  # type: ignore[arg-type]
        value, name = getattr(owner, one.name), before + one.name
        if isinstance(value, np.ndarray):
            found.append(name)
        elif isinstance(value, Ragged | Admissions):
            found.extend(_names(value, name + "."))
    return found


_OF_ADMISSIONS = _names(Admissions(), "admissions.")
_NAMES = [*(one for one in _names(Step()) if one not in _OF_ADMISSIONS), *_OF_ADMISSIONS]
_own: Callable[[Step], tuple[NDArray[np.int32], ...]]
_own = attrgetter(*_NAMES[: -len(_OF_ADMISSIONS)])
_admitted: Callable[[Step], tuple[NDArray[np.int32], ...]] = attrgetter(*_OF_ADMISSIONS)


@dataclass(slots=True)
class LogprobRows:
    """Logprobs of sampled or prompt tokens, where asked for; L of them, N alternatives at most.

    Attributes:
        row: [L] index of the request in the step.
        offset: [L] which of the request's tokens in this step.
        chosen: [L] logprob of the token.
        rank: [L] its rank, from 1.
        ids: [L, N].
        values: [L, N].
    """

    row: Int32
    offset: Int32
    chosen: Float32
    rank: Int32
    ids: Int32
    values: Float32


@dataclass(slots=True)
class PooledRows:
    """Vectors of pooled requests that this step completed; P of them.

    Attributes:
        row: [P] index of the request in the step.
        values: [P, C].
    """

    row: Int32
    values: Float32


@dataclass(slots=True)
class StepOutput:
    """The results of a step.

    Attributes:
        id: The step's.
        tokens: [B, 1 + K] chosen ids, valid up to `counts`.
        counts: [B] how many; 0 for requests without logits in this step. A pooled request whose
            vector is complete has 1, and its token means nothing.
        finite: [B] False where a row of logits held a NaN or no finite value at all, also one of
            `Step.reads`, or a vector.
        logprobs: When any request asked for them.
        drafts: [B, K] draft tokens for the next step, for grammars; empty without a speculator.
        reads: Of `Step.reads`, in their order.
        pooled: If any is complete.
    """

    id: int
    tokens: Int32
    counts: Int32
    finite: NDArray[np.bool_]
    logprobs: LogprobRows | None = None
    drafts: Int32 = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int32))
    reads: LogprobRows | None = None
    pooled: PooledRows | None = None
