from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from camshaft.contracts.hardware import HardwareBackend
from camshaft.errors import DeviceError
from camshaft.plugins.hardware.components import CudaSettings
from camshaft.plugins.hardware.cuda import CudaBackend
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
