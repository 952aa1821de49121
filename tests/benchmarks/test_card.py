"""The card's state, from what its driver's tool prints."""

from __future__ import annotations

import shutil
import subprocess
from types import SimpleNamespace

import pytest

from benchmarks.card import card_state, read_state
from camshaft.errors import DeviceError


def test_a_line_is_read_by_metric() -> None:
    assert read_state("1980, 3201, 412.53, 41\n") == {
        "sm_clock": 1980.0,
        "memory_clock": 3201.0,
        "power": 412.53,
        "temperature": 41.0,
    }


def test_what_the_card_does_not_tell_is_left_out() -> None:
    assert read_state("1980, [N/A], [Not Supported], 41") == {"sm_clock": 1980.0, "temperature": 41}


def test_without_the_tool_the_way_to_do_without_it_is_told(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(DeviceError, match="nvidia-smi is not on the path; --no-clocks"):
        card_state("x")


def test_a_failing_tool_is_quoted(monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: name)
    answer = SimpleNamespace(returncode=6, stdout="No devices were found\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(DeviceError, match="No devices were found; --no-clocks"):
        card_state("x")
