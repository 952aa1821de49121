"""A plain sampler in numpy, one row after the other: the slow twin of fast ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.sampling import DeviceLogprobs, Sampled, Sampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..contracts.sampling import RowContext, SamplerSpec
    from ..step import Admissions

    Row = NDArray[np.float64]
    Report = tuple[int, int, float, int, list[int], list[float]]


@dataclass
class Slot:
    """One request's parameters and tokens, as plain Python."""

    seed: int
    produced: int
    top_k: int
    min_tokens: int
    logprobs: int
    temperature: float
    top_p: float
    min_p: float
    presence: float
    frequency: float
    repetition: float
    bias: dict[int, float]
    allowed: list[int]
    stops: list[int]
    bad_words: list[list[int]]
    prompt: list[int]
    outputs: list[int] = field(default_factory=list)


def unpack(admissions: Admissions, place: int) -> Slot:
    """Return one request of the admissions."""
    low, high = (one % 2**32 for one in admissions.seeds[place].tolist())
    packed, words = admissions.bad_words[place].tolist(), []
    while packed:
        words.append(packed[1 : 1 + packed[0]])
        packed = packed[1 + packed[0] :]
    names = ("produced", "top_k", "min_tokens", "logprobs", "temperature", "top_p", "min_p")
    penalties = ("presence", "frequency", "repetition")
    return Slot(
        seed=low + high * 2**32,
        bias=dict(
            zip(
                admissions.bias_ids[place].tolist(),
                admissions.bias_values[place].view(np.float32).tolist(),
                strict=True,
            )
        ),
        allowed=admissions.allowed[place].tolist(),
        stops=admissions.stops[place].tolist(),
        bad_words=words,
        prompt=admissions.prompt[place].tolist(),
        outputs=admissions.outputs[place].tolist(),
        **{name: getattr(admissions, name)[place].item() for name in (*names, *penalties)},
    )


class RowByRow(Sampler):
    """The sampler. Each promise of the contract is one method, so that a test can break it."""

    order: tuple[str, ...] = ("mask", "allowed", "bias", "penalties", "bad_words", "min_tokens")

    def __init__(self, spec: SamplerSpec) -> None:
        self.spec = spec
        self.slots: dict[int, Slot] = {}

    def admit(self, admissions: Admissions) -> None:
        """See `Sampler.admit`."""
        for place, slot in enumerate(admissions.slots.tolist()):
            self.slots[slot] = unpack(admissions, place)
        for processor in self.spec.processors:
            processor.admit(admissions)

    def sample(self, logits: torch.Tensor, rows: RowContext, masks: torch.Tensor | None) -> Sampled:
        """See `Sampler.sample`."""
        raw = logits.numpy().astype(np.float64)
        done = raw.copy()
        for row in range(len(raw)):
            bits = None if masks is None else masks[row].numpy()
            done[row] = self.process(raw[row].copy(), *self.whose(row, rows), bits)
        logits.copy_(torch.tensor(done))
        for processor in self.spec.processors:
            if processor.active(rows):
                processor.apply(logits, rows)
        return self.finish(raw, logits.numpy().astype(np.float64), rows)

    def finish(self, raw: Row, done: Row, rows: RowContext) -> Sampled:
        """Choose and verify, given the raw and the processed logits [Q, V]."""
        most = rows.drafts.shape[1]
        tokens = torch.zeros((len(rows.slots), 1 + most), dtype=torch.int64)
        counts = torch.ones(len(rows.slots), dtype=torch.int64)
        finite = torch.ones(len(rows.slots), dtype=torch.bool)
        reports = []
        for request, slot in enumerate(rows.host_slots.tolist()):
            own, start = self.slots[slot], rows.host_rows[request]
            drafts = rows.drafts[request].tolist()
            drafts = drafts[: rows.host_rows[request + 1] - start - 1]
            chosen: list[int] = []
            for row in range(start, start + len(drafts) + 1):
                if not self.sound(raw[row]) or not self.sound(done[row]):
                    finite[request] = False
                    break
                token = self.choose(done[row], own, own.produced + len(chosen), row)
                if own.logprobs >= 0:
                    where = (request, len(chosen), token)
                    reports.append(self.report(self.reported(raw[row], done[row]), own, where))
                chosen.append(token)
                if len(chosen) > len(drafts) or not self.accepts(token, drafts[len(chosen) - 1]):
                    break
            if finite[request]:
                tokens[request, : len(chosen)] = torch.tensor(chosen)
                counts[request] = len(chosen)
                own.outputs.extend(chosen)
                own.produced += len(chosen)
        sampled = Sampled(tokens, counts, finite, self.stack(reports))
        for processor in self.spec.processors:
            processor.observe(sampled, rows)
        return sampled

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor, most: int
    ) -> DeviceLogprobs:
        """See `Sampler.logprobs`."""
        rows, alternatives = logits.numpy().astype(np.float64), wanted.tolist()
        reports = [
            self.score(rows[row], token, alternatives[row], (row, 0))
            for row, token in enumerate(tokens.tolist())
        ]
        found = self.stack(reports)
        assert found is not None
        return found

    def whose(self, row: int, rows: RowContext) -> tuple[Slot, list[int]]:
        """Return the request of a row, and the drafts before the row."""
        request = int(rows.row_request[row])
        own = self.slots[int(rows.host_slots[request])]
        return own, rows.drafts[request, : int(rows.offsets[row])].tolist()

    def process(
        self, row: Row, own: Slot, drafts: list[int], bits: NDArray[np.int32] | None
    ) -> Row:
        """Apply mask and parameters in order."""
        for name in self.order:
            if name != "mask":
                row = getattr(self, name)(row, own, drafts)
            elif bits is not None:
                allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")
                row[allowed[: len(row)] == 0] = -math.inf
        return row

    def allowed(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        """Leave only the allowed ids."""
        if own.allowed:
            row[[one for one in range(len(row)) if one not in own.allowed]] = -math.inf
        return row

    def bias(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        """Add the bias."""
        for token, value in own.bias.items():
            row[token] += value
        return row

    def penalties(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        """Apply the penalties."""
        counts = np.bincount(own.outputs + drafts, minlength=len(row))
        for token in {*own.prompt, *own.outputs, *drafts}:
            row[token] *= own.repetition if row[token] < 0 else 1 / own.repetition
        row -= own.frequency * counts + own.presence * (counts > 0)
        return row

    def bad_words(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        """Forbid the last ids of bad words."""
        history = own.outputs + drafts
        for *first, last in own.bad_words:
            if history[len(history) - len(first) :] == first:
                row[last] = -math.inf
        return row

    def min_tokens(self, row: Row, own: Slot, drafts: list[int]) -> Row:
        """Forbid stop ids that come too early."""
        if own.produced + len(drafts) < own.min_tokens:
            row[own.stops] = -math.inf
        return row

    def sound(self, row: Row) -> bool:
        """Return whether a row has a finite maximum; NaN would be one."""
        return bool(np.isfinite(row.max()))

    def choose(self, row: Row, own: Slot, index: int, place: int) -> int:
        """Return the token of output `index`, chosen in row `place` of the batch."""
        if own.temperature <= 1e-4 or own.min_p >= 1:
            return self.best(row)
        odds = np.exp((row - row.max()) / own.temperature)
        odds = self.cut(odds, np.argsort(-row, kind="stable"), own)
        order = self.sequence(row, own)
        running = odds[order].cumsum() / odds.sum()
        at = int((running <= self.uniform(own.seed, index, place)).sum())
        return int(order[min(at, int(np.flatnonzero(odds[order])[-1]))])

    def sequence(self, row: Row, own: Slot) -> NDArray[np.int64]:
        """Return the ids in the order in which their probabilities are summed up."""
        return np.argsort(-row, kind="stable")

    def best(self, row: Row) -> int:
        """Return the greedy token."""
        return int(row.argmax())

    def cut(self, odds: Row, order: NDArray[np.int64], own: Slot) -> Row:
        """Apply top-k, top-p and min-p to odds [V]; `order` has the best ids first."""
        if own.top_k > 0:
            odds[order[own.top_k :]] = 0
        share = odds[order] / odds.sum()
        odds[order[self.outside(share, own.top_p)]] = 0
        odds[odds < own.min_p * odds.max()] = 0
        return odds

    def outside(self, share: Row, top_p: float) -> NDArray[np.bool_]:
        """Return which of the best-first shares top-p leaves out."""
        return share.cumsum() - share >= top_p

    def uniform(self, seed: int, index: int, place: int) -> float:
        """Return the random number of output `index`, in [0, 1)."""
        return float(np.random.default_rng([seed, index]).random())

    def accepts(self, token: int, draft: int) -> bool:
        """Return whether a draft is right."""
        return token == draft

    def report(self, row: Row, own: Slot, where: tuple[int, int, int]) -> Report:
        """Return the logprobs of a token; `where` is request, offset and token."""
        request, offset, token = where
        return self.score(row, token, own.logprobs, (request, offset))

    def score(self, row: Row, token: int, most: int, where: tuple[int, int]) -> Report:
        """Return the logprobs of a token; `where` is request and offset."""
        if not self.sound(row):
            return *where, math.nan, 1, [], []
        logprobs = row - row.max() - math.log(np.exp(row - row.max()).sum())
        order = np.argsort(-logprobs, kind="stable").tolist()
        kept = [one for one in order if math.isfinite(logprobs[one])][:most]
        values = logprobs[kept].tolist()
        return *where, float(logprobs[token]), order.index(token) + 1, kept, values

    def reported(self, raw: Row, done: Row) -> Row:
        """Return the logits whose logprobs are reported."""
        return raw

    def stack(self, reports: list[Report]) -> DeviceLogprobs | None:
        """Return all reports as tensors."""
        if not reports:
            return None
        most = max(len(one[4]) for one in reports)
        return DeviceLogprobs(
            request=torch.tensor([one[0] for one in reports]),
            offset=torch.tensor([one[1] for one in reports]),
            chosen=torch.tensor([one[2] for one in reports]),
            rank=torch.tensor([one[3] for one in reports]),
            ids=torch.tensor([one[4] + [-1] * (most - len(one[4])) for one in reports]),
            values=torch.tensor([one[5] + [0.0] * (most - len(one[5])) for one in reports]),
        )
