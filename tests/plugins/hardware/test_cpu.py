from __future__ import annotations

import os

import pytest
import torch

from camshaft.compose.draw import draw
from camshaft.contracts.hardware import HardwareBackend
from camshaft.errors import DeviceError, RecipeError
from camshaft.plugins.hardware.components import CpuSettings
from camshaft.plugins.hardware.cpu import CpuBackend, memory_limit, usable_cores
from camshaft.testing.hardware import HardwareContract
from camshaft.testing.toy import toy_recipe


@pytest.fixture(autouse=True)
def _keep_threads():
    """Opening the device sets torch's threads for the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class TestContract(HardwareContract):
    def make(self) -> HardwareBackend:
        return CpuBackend(CpuSettings())


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


def test_auto_takes_no_more_cores_than_this_process_may_use() -> None:
    assert CpuBackend(CpuSettings()).threads == usable_cores()
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_it_computes_in_both_dtypes_and_has_no_graphs() -> None:
    facts = CpuBackend(CpuSettings()).facts()
    assert facts.kind == "cpu"
    assert sorted(facts.dtypes) == ["bfloat16", "float32"]
    assert "graphs" not in facts.capabilities


def test_too_much_memory_names_the_setting_to_lower() -> None:
    hardware = CpuBackend(CpuSettings())
    with pytest.raises(DeviceError, match=r"MiB are free; lower cache\.memory"):
        hardware.allocate(2 * memory_limit())


def test_it_runs_on_one_rank() -> None:
    with pytest.raises(DeviceError, match="one rank; 2 are asked for"):
        CpuBackend(CpuSettings()).communicator(0, 2)
