from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from camshaft.errors import DeviceError
from camshaft.plugins.attention.device import OnDevice, look_at

CUDA = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Put a card of sm_90 in place of the machine's."""
    card = SimpleNamespace(capability=(9, 0))
    facts = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: card.capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "card")
    monkeypatch.setattr(torch.version, "hip", None)
    return card


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize(("asked", "early"), [(None, True), (True, True), (False, False)])
def test_a_card_that_can_start_kernels_early_does_unless_told_otherwise(
    asked: bool | None, early: bool
) -> None:
    assert look_at(CUDA, asked) == OnDevice(132, early=early, is_roomy=True)


def test_other_cards_do_not_and_say_so(card: SimpleNamespace) -> None:
    card.capability = (8, 9)
    assert look_at(CUDA, None) == OnDevice(132, early=False)
    with pytest.raises(DeviceError, match="needs an NVIDIA device of sm_90 or later, and this is"):
        look_at(CUDA, early=True)


def test_amds_devices_are_called_cuda_and_cannot(
    card: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert card.capability == (9, 0)
    assert look_at(CUDA, None) == OnDevice(132, early=False)


def test_the_interpreter_cannot_either() -> None:
    assert look_at(torch.device("cpu"), None) == OnDevice(8, early=False)
    with pytest.raises(DeviceError, match="this is a cpu. Set it to null or false"):
        look_at(torch.device("cpu"), early=True)
