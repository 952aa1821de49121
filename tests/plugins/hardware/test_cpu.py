from __future__ import annotations

import os

import psutil
import pytest
import torch

from camshaft import native
from camshaft.compose.draw import draw
from camshaft.contracts.hardware import HardwareBackend
from camshaft.errors import DeviceError, RecipeError
from camshaft.native.rows import SILU, gate
from camshaft.plugins.hardware.components import CpuSettings
from camshaft.plugins.hardware.cpu import CpuBackend, memory_limit, usable_cores
from camshaft.testing.hardware import HardwareContract
from camshaft.testing.toy import toy_recipe


@pytest.fixture(autouse=True)
def _keep_threads():
    """Opening the device sets torch's threads for the whole process, and takes a team."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    native.close_team()


class TestContract(HardwareContract):
    def make(self) -> HardwareBackend:
        return CpuBackend(CpuSettings())


def test_memory_is_taken_when_it_is_written_to() -> None:
    process, size = psutil.Process(), 256 * 2**20
    before = process.memory_info().rss
    region = CpuBackend(CpuSettings()).allocate(size)
    assert process.memory_info().rss - before < size // 8
    region[: size // 2].fill_(7)
    assert process.memory_info().rss - before > size // 3
    assert region[size // 2 - 1 : size // 2 + 1].tolist() == [7, 0]
    del region
    assert process.memory_info().rss - before < size // 8


def test_it_is_no_device_for_triton_even_where_that_is_installed() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    with pytest.raises(
        RecipeError, match=r"attention\.decode: 'triton' needs triton, which .* \(cpu\)"
    ):
        draw(toy_recipe(changes={"attention": {"use": "triton"}}))


def test_opening_sets_the_threads_that_the_recipe_names() -> None:
    hardware = CpuBackend(CpuSettings(threads=3))
    assert hardware.facts().threads == 3
    hardware.open()
    assert torch.get_num_threads() == 3


@pytest.mark.skipif(bool(native.reasons()), reason="no compiled operations here")
def test_compiled_operations_run_on_as_many_threads_until_it_is_closed() -> None:
    hardware = CpuBackend(CpuSettings(threads=3))
    hardware.open()
    assert native.team_size() == 3
    hardware.close()
    assert native.team_size() == 1


def test_auto_takes_no_more_cores_than_this_process_may_use() -> None:
    assert CpuBackend(CpuSettings()).threads == usable_cores()
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_it_computes_in_both_dtypes_and_has_no_graphs() -> None:
    facts = CpuBackend(CpuSettings()).facts()
    assert facts.kind == "cpu"
    assert sorted(facts.dtypes) == ["bfloat16", "float32"]
    assert "graphs" not in facts.capabilities


@pytest.mark.skipif(bool(native.reasons()), reason="no compiled operations here")
def test_what_compiled_operations_do_is_recorded() -> None:
    runs = []
    rows, out = torch.zeros(2, 8), torch.empty(2, 4)

    def function() -> tuple[torch.Tensor]:
        runs.append(1)
        gate(rows + 1, SILU, out)
        return (out,)

    recording = CpuBackend(CpuSettings()).capture(function)
    rows.fill_(9.0)
    (result,) = recording.replay()
    assert result is not None
    assert result[0, 0].item() == pytest.approx(99.9955, abs=1e-3)  # silu(10) * 10
    assert len(runs) == 1


def test_what_torch_does_alone_runs_anew() -> None:
    runs = []
    x = torch.zeros(2)

    def function() -> tuple[torch.Tensor]:
        runs.append(1)
        return (x + 1,)

    recording = CpuBackend(CpuSettings()).capture(function)
    before = len(runs)
    recording.replay()
    assert len(runs) == before + 1


@pytest.mark.skipif(bool(native.reasons()), reason="no compiled operations here")
def test_what_cannot_be_recorded_is_said_once_and_runs_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    x, hardware = torch.tensor([1.0]), CpuBackend(CpuSettings())
    recordings = [hardware.capture(lambda: (x * x.item(),)) for _ in range(2)]
    [record] = caplog.records
    assert "steps are not recorded: aten._local_scalar_dense.default" in record.message
    x.fill_(3.0)
    for one in recordings:
        (result,) = one.replay()
        assert result is not None
        assert result.tolist() == [9.0]


def test_too_much_memory_names_the_setting_to_lower() -> None:
    hardware = CpuBackend(CpuSettings())
    with pytest.raises(DeviceError, match=r"MiB are free; lower cache\.memory"):
        hardware.allocate(2 * memory_limit())


def test_it_runs_on_one_rank() -> None:
    with pytest.raises(DeviceError, match="one rank; 2 are asked for"):
        CpuBackend(CpuSettings()).communicator(0, 2)
