"""The built-in processors hold the contract of extra ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.component import Settings
from camshaft.plugins.sampling.allowed import AllowedIds
from camshaft.plugins.sampling.bad_words import BadWords
from camshaft.plugins.sampling.bias import LogitBias
from camshaft.plugins.sampling.min_tokens import MinTokens
from camshaft.plugins.sampling.penalties import Penalties
from camshaft.testing.processor import LogitsProcessorContract
from camshaft.testing.sampling_play import params

if TYPE_CHECKING:
    from camshaft.contracts.sampling import LogitsProcessor
    from camshaft.request import SamplingParams


class TestAllowedIds(LogitsProcessorContract):
    def make(self) -> LogitsProcessor:
        return AllowedIds(Settings())

    def params(self) -> SamplingParams:
        return params(allowed_token_ids=(3, 4, 39))


class TestLogitBias(LogitsProcessorContract):
    def make(self) -> LogitsProcessor:
        return LogitBias(Settings())

    def params(self) -> SamplingParams:
        return params(logit_bias={4: 1.5, 39: -100.0})


class TestPenalties(LogitsProcessorContract):
    def make(self) -> LogitsProcessor:
        return Penalties(Settings())

    def params(self) -> SamplingParams:
        return params(presence_penalty=0.3, frequency_penalty=-0.2, repetition_penalty=1.7)


class TestPresencePenaltyAlone(TestPenalties):
    def params(self) -> SamplingParams:
        return params(presence_penalty=0.3)


class TestBadWords(LogitsProcessorContract):
    def make(self) -> LogitsProcessor:
        return BadWords(Settings())

    def params(self) -> SamplingParams:
        return params(bad_words=((5, 4, 6), (4, 5), (9,), (6, 4, 5, 8)))


class TestMinTokens(LogitsProcessorContract):
    def make(self) -> LogitsProcessor:
        return MinTokens(Settings())

    def params(self) -> SamplingParams:
        return params(min_tokens=4)
