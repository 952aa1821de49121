from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from camshaft.contracts.hardware import HardwareBackend
from camshaft.errors import DeviceError
from camshaft.plugins.hardware.components import CudaSettings
from camshaft.plugins.hardware.cuda import CudaBackend, CudaRecording
from camshaft.plugins.hardware.rocm import RocmBackend
from camshaft.testing.hardware import HardwareContract


@pytest.mark.gpu
class TestCuda(HardwareContract):
    def make(self) -> HardwareBackend:
        return CudaBackend(CudaSettings())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.version.hip, reason="torch is not built for ROCm")
class TestRocm(HardwareContract):
    def make(self) -> HardwareBackend:
        return RocmBackend(CudaSettings())


@pytest.mark.gpu
def test_a_recording_gets_memory_that_torch_keeps_for_later() -> None:
    backend = CudaBackend(CudaSettings())
    backend.open()
    backend.capture(lambda: (torch.zeros(1, device=backend.device),))
    torch.cuda.empty_cache()
    allowed = torch.cuda.memory_reserved() + (1 << 30)
    torch.cuda.set_per_process_memory_fraction(allowed / backend.facts().memory_bytes)
    try:
        kept = torch.empty(900 << 20, dtype=torch.uint8, device=backend.device)
        del kept
        recording = backend.capture(
            lambda: (torch.ones(500 << 20, dtype=torch.uint8, device=backend.device)[:2] + 1,)
        )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    (result,) = recording.replay()
    assert result is not None
    assert result.tolist() == [2, 2]


@pytest.mark.gpu
def test_recordings_can_be_made_after_all_earlier_ones_have_gone() -> None:
    backend = CudaBackend(CudaSettings())
    backend.open()
    ones = torch.ones(3, device=backend.device)
    for number in range(3):
        ones.fill_(number)
        (result,) = backend.capture(lambda: (ones * 1,)).replay()
        assert result is not None
        assert result.tolist() == [number] * 3


@pytest.mark.gpu
def test_after_a_function_that_cannot_be_recorded_others_can() -> None:
    backend = CudaBackend(CudaSettings())
    backend.open()
    calls: list[int] = []

    def fails_when_recorded() -> tuple[torch.Tensor]:
        calls.append(1)
        result = torch.ones(2, device=backend.device)
        if len(calls) == 2:
            raise ValueError("not now")
        return (result,)

    with pytest.raises(ValueError, match="not now"):
        backend.capture(fails_when_recorded)
    (result,) = backend.capture(fails_when_recorded).replay()
    assert result is not None
    assert result.tolist() == [1, 1]


def test_a_recording_that_runs_out_of_memory_is_tried_again_with_what_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, done = CudaBackend(CudaSettings()), list[str]()
    recording = cast("CudaRecording", object())

    def run() -> tuple[()]:
        done.append("run")
        return ()

    def record(function: object, lane: int) -> CudaRecording:
        done.append("record")
        if len(done) == 2:
            raise torch.OutOfMemoryError
        return recording

    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("wait"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: done.append("give back"))
    monkeypatch.setattr(backend, "_record", record)
    assert backend.capture(run) is recording
    assert done == ["run", "record", "wait", "give back", "record"]


def test_a_device_that_is_not_there_is_named_with_a_way_out(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(DeviceError, match=r"wants device 3, and torch .* sees 1; .*hardware: cpu"):
        CudaBackend(CudaSettings(index=3)).facts()


def test_a_torch_for_the_other_vendor_is_refused_by_name(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(DeviceError, match="built for rocm; say `hardware: rocm`"):
        CudaBackend(CudaSettings()).facts()


@pytest.mark.parametrize(
    ("major", "minor", "name", "fp8"),
    [(8, 0, "sm_80", False), (8, 9, "sm_89", True), (9, 0, "sm_90", True), (10, 0, "sm_100", True)],
)
def test_an_nvidia_device_is_known_by_its_compute_capability(
    major: int, minor: int, name: str, fp8: bool
) -> None:
    found = SimpleNamespace(major=major, minor=minor)
    backend = CudaBackend(CudaSettings())
    assert (backend.architecture(found), backend.has_fp8(found)) == (name, fp8)


@pytest.mark.parametrize(("name", "fp8"), [("gfx90a", False), ("gfx942:sramecc+", True)])
def test_an_amd_device_is_known_by_its_instruction_set(name: str, fp8: bool) -> None:
    found = SimpleNamespace(gcnArchName=name)
    backend = RocmBackend(CudaSettings())
    assert backend.architecture(found) == name.split(":")[0]
    assert backend.has_fp8(found) is fp8
