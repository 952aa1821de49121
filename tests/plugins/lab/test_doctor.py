"""`engine doctor` on this machine, and on machines that lack something."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from camshaft import Component, Registry
from camshaft.cli import main
from camshaft.component import Settings
from camshaft.contracts.command import Command
from camshaft.plugins.lab.doctor import Doctor, table
from camshaft.plugins.lab.findings import Findings, examine
from camshaft.testing.command import CommandContract


class TestContract(CommandContract):
    name = "doctor"

    def make(self) -> Command:
        return Doctor(Settings())


@pytest.fixture(scope="module")
def found() -> Findings:
    return examine(Registry.discover())


def test_it_names_versions_and_the_device(found: Findings) -> None:
    assert found.libraries["camshaft"]
    assert found.libraries["torch"]
    [cpu] = [one for one in found.devices if one.component == "cpu"]
    assert cpu.facts is not None
    assert cpu.memory is not None
    assert 0 < cpu.memory[1] <= cpu.memory[0]
    assert "float32" in cpu.facts.dtypes


def test_it_says_which_threads_were_chosen_and_where_compiled_operations_are(
    found: Findings,
) -> None:
    [cpu] = [one for one in found.devices if one.component == "cpu"]
    assert re.match(r"\d+ threads, (on cores [\d,-]+|not pinned), [\d,]+ spins \(", cpu.notes[0])
    assert f"    {cpu.notes[0]}" in table(found).splitlines()
    assert re.search(r"native-\w+\.so|processor|compiler", found.machine["compiled operations"])


def test_a_component_that_fits_no_device_says_why(found: Findings) -> None:
    fits = {(one.kind, one.name): one for one in found.fits}
    assert "cpu" in fits["attention", "reference"].devices
    assert "cpu" in fits["scheduler", "continuous"].devices
    other = fits["attention", "flashinfer"]
    assert "cpu" not in other.devices
    assert any("it needs cuda" in one for one in other.reasons)
    assert "  attention flashinfer: cpu: it needs cuda" in table(found).splitlines()


def test_a_machine_without_a_device_is_not_healthy() -> None:
    nowhere = Component("hardware", "nowhere", "no.such.module:Backend")
    found = examine(Registry().with_components([nowhere]))
    assert not found.healthy
    [device] = found.devices
    assert (device.facts, "did not load from" in device.reason) == (None, True)
    assert "nowhere: no device: hardware 'nowhere' of python did not load" in table(found)


def test_a_component_that_does_not_load_is_a_finding() -> None:
    lost = Component("scheduler", "lost", "no.such.module:Scheduler", summary="x")
    [fit] = examine(Registry().with_components([lost])).fits
    assert (fit.devices, len(fit.reasons)) == ((), 1)
    assert "\n" not in fit.reasons[0]


def test_a_broken_plugin_makes_the_exit_code_1(capsys, monkeypatch) -> None:
    monkeypatch.setenv("CAMSHAFT_DISABLE", "nobody:nothing")
    assert main(["doctor", "--json"]) == 1
    told: Any = json.loads(capsys.readouterr().out)
    assert told["healthy"] is False
    assert "CAMSHAFT_DISABLE names 'nobody:nothing'" in told["broken"][0]
