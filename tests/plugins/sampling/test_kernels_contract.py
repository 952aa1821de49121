"""The sampler with kernels, interpreted on any machine that has Triton, compiled on a GPU."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from camshaft.component import Settings
from camshaft.contracts.sampling import (
    DeviceLogprobs,
    RecordedChoice,
    RowContext,
    Sampled,
    Sampler,
    SamplerSpec,
)
from camshaft.plugins.sampling import standard
from camshaft.plugins.sampling.bias import LogitBias
from camshaft.plugins.sampling.components import StandardSettings
from camshaft.plugins.sampling.params import Method
from camshaft.plugins.sampling.standard import Standard
from camshaft.testing.sampling import SamplerContract
from camshaft.testing.sampling_making import VOCAB
from camshaft.testing.sampling_play import Ask, admit, params
from camshaft.testing.sampling_recorded import RecordedTests

pytest.importorskip("triton", reason="triton is not installed")

if TYPE_CHECKING:
    from collections.abc import Hashable

    from numpy.typing import NDArray

    from camshaft.step import Admissions


class Moved(Sampler):
    """A sampler on a GPU for callers whose tensors are on the CPU."""

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner

    def admit(self, admissions: Admissions) -> None:
        self.inner.admit(admissions)

    def sample(self, logits: torch.Tensor, rows: RowContext, masks: Any) -> Sampled:
        masks = None if masks is None else masks.cuda()
        sampled = self.inner.sample(logits.cuda(), moved(rows, "cuda"), masks)
        found: Sampled = moved(sampled, "cpu")
        if sampled.logprobs is not None:
            found.logprobs = moved(sampled.logprobs, "cpu")
        return found

    def logprobs(
        self, logits: torch.Tensor, tokens: torch.Tensor, wanted: torch.Tensor, most: int
    ) -> DeviceLogprobs:
        found = self.inner.logprobs(logits.cuda(), tokens.cuda(), wanted.cuda(), most)
        one: DeviceLogprobs = moved(found, "cpu")
        return one

    def recordable(self, slots: NDArray[np.int32]) -> Hashable | None:
        return self.inner.recordable(slots)

    def record(self, key: Hashable, logits: torch.Tensor, slots: torch.Tensor) -> RecordedChoice:
        chosen = self.inner.record(key, logits.cuda(), slots.cuda())
        return RecordedChoice(chosen.tokens.cpu(), chosen.finite.cpu())


def moved(one: Any, device: str) -> Any:
    tensors = {
        field.name: value.to(device)
        for field in dataclasses.fields(one)
        if isinstance(value := getattr(one, field.name), torch.Tensor)
    }
    return dataclasses.replace(one, **tensors)


@pytest.mark.interpreted
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
class TestInterpreted(RecordedTests):
    """Not all of the contract, which takes the interpreter a quarter of an hour."""

    @pytest.fixture(autouse=True)
    def kernels_on_the_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(standard, "runs_kernels", lambda device: True)
        from triton.runtime import interpreter

        patch = interpreter._patch_lang_tensor

        def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
            patch(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)

    def make(self, spec: SamplerSpec) -> Sampler:
        return Standard(StandardSettings(), spec)

    def test_logprobs_and_masks_of_ids_are_left_to_sample(self) -> None:
        asks = [
            Ask(0, params(logprobs=0)),
            Ask(1, params(allowed_token_ids=(1,))),
            Ask(2, params()),
        ]
        sampler = self.recording(*asks).sampler
        keys = [sampler.recordable(np.array([slot], dtype=np.int32)) for slot in range(3)]
        assert keys == [None, None, Method.DRAW]
        assert sampler.recordable(np.arange(3, dtype=np.int32)) is None

    def test_extra_processors_are_left_to_sample(self) -> None:
        spec = SamplerSpec(VOCAB, 2, "cpu", processors=(LogitBias(Settings()),))
        spec.processors[0].attach(spec)
        sampler = self.make(spec)
        sampler.admit(admit(Ask(0, params())))
        assert sampler.recordable(np.zeros(1, dtype=np.int32)) is None


@pytest.mark.gpu
class TestCompiled(SamplerContract):
    def make(self, spec: SamplerSpec) -> Sampler:
        there = dataclasses.replace(spec, device="cuda")
        for processor in spec.processors:
            processor.attach(there)
        return Moved(Standard(StandardSettings(), there))
