"""What is prepared before the first step, and in which thread."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from threading import Barrier, get_ident
from typing import Any

import pytest

from camshaft.compose import Composed, compose, warm
from camshaft.contracts.attention import AttentionBackend
from camshaft.facts import Capability
from camshaft.plugins.attention.reference import ReferenceAttention
from camshaft.plugins.hardware.cpu import CpuBackend
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.toy import LLAMA, toy_mapping


@pytest.fixture(autouse=True)
def has_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a CPU pass for a device with Triton, whose compiler has nothing to do."""
    facts = CpuBackend.facts

    def able(self: CpuBackend) -> Any:
        found = facts(self)
        return replace(found, capabilities=found.capabilities | {Capability.TRITON})

    def ahead(threads: int) -> AbstractContextManager[None]:
        return nullcontext()

    monkeypatch.setattr(CpuBackend, "facts", able)
    monkeypatch.setattr(warm, "compiling_ahead", ahead)
    monkeypatch.setattr(warm, "know_the_compiler", lambda: None)
    monkeypatch.setattr("camshaft.compose.build.know_the_compiler", lambda: None)


def composed() -> Composed:
    changes = {"engine": {"warm_up": "kernels"}}
    return compose(parse_recipe(toy_mapping(LLAMA, changes), Registry.discover()))


def test_libraries_plan_in_the_thread_of_the_steps_while_another_one_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    together, threads = Barrier(2), dict[str, int]()

    def note(name: str) -> None:
        threads[name] = get_ident()
        together.wait(10)  # both are under way

    def plan(self: AttentionBackend, device: str, step_tokens: int) -> None:
        note("plans")

    monkeypatch.setattr(ReferenceAttention, "warm_up", plan)
    monkeypatch.setattr(warm, "rehearse", lambda *_, **limits: note("kernels"))
    composed()
    assert threads["plans"] == get_ident() != threads["kernels"]


def test_a_fault_of_the_thread_that_compiles_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **limits: int) -> None:
        raise ValueError("no such kernel")

    monkeypatch.setattr(warm, "rehearse", fail)
    with pytest.raises(ValueError, match="no such kernel"):
        composed()
