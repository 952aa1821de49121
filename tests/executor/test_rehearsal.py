"""What steps launch was compiled before the first of them, and the engine is as if it never was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from camshaft.compose import Composed, compose
from camshaft.executor import rehearsal
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.hardware.cpu import CpuBackend
from camshaft.plugins.sampling import standard
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, toy_mapping

pytest.importorskip("triton", reason="triton is not installed")

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="TRITON_INTERPRET=1 is set"
)

HEADS = {"hidden_size": 64, "head_dim": 16}
CHANGES: dict[str, Any] = {
    "attention": {"use": "triton"},
    "cache": {"use": "paged", "page_tokens": 16, "memory": "4MiB"},
    "scheduler": {"use": "continuous", "step_tokens": 64, "max_running": 20},
    "engine": {"deterministic": False, "warm_up": "kernels"},
}
CAN = {Capability.TRITON, Capability.GRAPHS}


class Compiler:
    """Stands for Triton's: notes what it is asked for, and in which phase of composing."""

    def __init__(self) -> None:
        self.phase = ""
        self.names: dict[str, list[str]] = {}

    def __call__(self, src: Any, **_: object) -> Any:
        self.names.setdefault(self.phase, []).append(src.name)
        return SimpleNamespace(run=None, _run=None)

    def enter(self, phase: str) -> None:
        self.phase = phase


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """Let a CPU pass for a device with Triton: nothing is compiled, nothing launched."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime.jit import JITFunction

    one, run, facts, real = Compiler(), JITFunction.run, CpuBackend.facts, triton.compiler.compile
    called: set[Any] = set()

    def only_compiled(self: Any, *args: Any, **named: Any) -> Any:
        called.add(self)
        return run(self, *args, **{**named, "warmup": True})

    def able(self: CpuBackend) -> DeviceFacts:
        found = facts(self)
        return replace(found, capabilities=found.capabilities | CAN)

    def choose(self: TorchExecutor, choice: Any, logits: Any, slots: torch.Tensor) -> torch.Tensor:
        own(self, choice, logits, slots)
        self.parts.state.last_token.zero_()  # no kernel ran that could have chosen
        return torch.zeros_like(slots)

    own = TorchExecutor.choose
    driver = SimpleNamespace(
        get_current_device=lambda: "rehearsal",
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    monkeypatch.setattr(triton.compiler, "compile", one)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    monkeypatch.setattr(JITFunction, "run", only_compiled)
    monkeypatch.setattr(CpuBackend, "facts", able)
    monkeypatch.setattr(TorchExecutor, "choose", choose)
    monkeypatch.setattr(standard, "runs_kernels", lambda device: True)
    yield one
    for kernel in called:  # what was not really compiled is forgotten
        kernel.device_caches.pop("rehearsal", None)
        kernel.compile = real


def composed(compiler: Compiler, config: dict[str, Any] = LLAMA) -> Composed:
    mapping = toy_mapping({**config, **HEADS}, CHANGES)
    mapping["ops"] = ["triton"]
    return compose(parse_recipe(mapping, Registry.discover()), progress=compiler.enter)


@pytest.mark.parametrize("model", ["llama", "gpt_neox"])  # in layers, and in one call
def test_no_kernel_is_compiled_when_steps_run(compiler: Compiler, model: str) -> None:
    engine = composed(compiler, {**LLAMA, "model_type": model}).engine
    compiler.enter("serving")
    for number in range(30):
        sampling = [{}, {"temperature": 0.7}, {"temperature": 0.7, "top_k": 5}][number % 3]
        prompt = [*range(40), *range(number)]
        engine.submit(make_request(str(number), prompt, 3 + number % 5, **sampling))
    assert len(run_to_end(engine)) == 30
    assert compiler.names.pop("preparing kernels")
    assert compiler.names == {}


def test_kernels_of_shared_prefixes_and_of_every_choice_are_among_them(compiler: Compiler) -> None:
    composed(compiler)
    names = compiler.names["preparing kernels"]
    assert {"prefill_kernel", "decode_kernel", "cascade_kernel"} <= set(names)
    assert {"begin_kernel", "sums_kernel", "list_kernel", "choose_kernel"} <= set(names)


def test_nothing_of_it_is_left(compiler: Compiler) -> None:
    executor = composed(compiler, HYBRID).engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    state = executor.parts.state
    assert not state.lengths.any()
    assert not state.last_token.any()
    tensors = [one for group in executor.parts.groups for one in group.all_fields()]
    assert all(not one.any() for one in tensors)


def test_attention_alone_is_rehearsed_without_telling_the_sampler(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    attends_only: list[bool] = []
    play, admit = rehearsal._Rehearsal.play, standard.Standard.admit

    def note(self: Any, step: Any) -> None:
        attends_only.append(self._attends_only)
        play(self, step)

    def count(self: Any, admissions: Any) -> None:
        told.append(attends_only[-1] if compiler.phase == "preparing kernels" else False)
        admit(self, admissions)

    monkeypatch.setattr(rehearsal._Rehearsal, "play", note)
    monkeypatch.setattr(standard.Standard, "admit", count)
    composed(compiler)
    assert attends_only.count(True) > 10
    assert len(told) > attends_only.count(False) > 10
    assert not any(told)


def test_two_layers_of_each_group_stand_for_the_others(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[int, ...]] = set()
    play = rehearsal._Rehearsal.play

    def note(self: Any, step: Any) -> None:
        seen.add(tuple(layer.attention.index for layer in self.parts.model.layers))
        play(self, step)

    monkeypatch.setattr(rehearsal._Rehearsal, "play", note)
    composed(compiler, {**HYBRID, "num_hidden_layers": 8, "layer_types": HYBRID["layer_types"] * 2})
    assert seen == {(0, 1, 2, 3), (0, 1)}
