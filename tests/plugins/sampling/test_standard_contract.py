"""Contract tests of the standard sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.plugins.sampling.components import StandardSettings
from camshaft.plugins.sampling.standard import Standard
from camshaft.testing.sampling import SamplerContract

if TYPE_CHECKING:
    from camshaft.contracts.sampling import Sampler, SamplerSpec


class TestStandard(SamplerContract):
    def make(self, spec: SamplerSpec) -> Sampler:
        return Standard(StandardSettings(), spec)
