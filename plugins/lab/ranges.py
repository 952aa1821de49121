"""Names for what an executor does: each part of a step becomes a range in a profiler's trace.

The parts are wrapped from outside, so an engine that is not profiled pays nothing. What is wrapped
is what the contracts name: linears, operations, attention, sampler. A linear is called by the name
under which its layer keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import record_function

from camshaft.contracts.quant import LinearMethod
from camshaft.contracts.scheduler import Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from camshaft.contracts.attention import AttentionBackend, AttentionMeta
    from camshaft.executor.torch_executor import TorchExecutor
    from camshaft.step import Step

PREFIX = "part: "
"""Of the names of our ranges in a trace."""

DECODE, PREFILL = "attention decode", "attention prefill"

_OPERATIONS = {
    "rms_norm": "norm",
    "add_rms_norm": "norm",
    "rope_qk_norm": "rope",
    "silu_mul": "activation",
    "gelu_mul": "activation",
}


@dataclass(slots=True)
class Linear:
    """A linear as it was seen at work.

    Attributes:
        weight_bytes: In its stored form.
        inputs: K; 0 until it was applied.
        outputs: N; 0 until it was applied.
    """

    weight_bytes: int
    inputs: int = 0
    outputs: int = 0

    @classmethod
    def of(cls, weight: torch.Tensor, bias: torch.Tensor | None) -> Linear:
        """Return a linear that is a plain matrix [N, K]."""
        size = weight.nbytes + (0 if bias is None else bias.nbytes)
        return cls(size, weight.shape[1], weight.shape[0])


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes. B requests.

    Attributes:
        lengths: [B] tokens.
        context: [B] tokens in pages before.
        rows: Rows with logits.
    """

    lengths: NDArray[np.int32]
    context: NDArray[np.int32]
    rows: int


@dataclass(slots=True)
class Ranges:
    """What was named, and the steps that ran since `steps` was last cleared.

    Attributes:
        linears: By part, one for each layer.
        steps: In order of launch.
    """

    linears: dict[str, list[Linear]] = field(default_factory=dict)
    steps: list[StepWork] = field(default_factory=list)
    _weights: dict[int, str] = field(default_factory=dict)  # part by address

    def of(self, executor: TorchExecutor) -> Ranges:
        """Name the parts of an executor that has recorded nothing yet; return self."""
        parts = executor.parts
        for layer in parts.model.layers:
            self._name_members(layer)
        self._name_model(parts.model)
        self._name_operations(parts.ops)
        for group in parts.groups:
            for backend in {group.prefill, group.decode}:
                _name_attention(backend)
        for method in ("sample", "record"):
            if hasattr(parts.sampler, method):
                _wrap(parts.sampler, method, "sampling")
        self._follow(executor)
        return self

    def _name_members(self, layer: object) -> None:
        for name, member in _members(layer):
            if isinstance(member, LinearMethod):
                self._name_linear(name, member)
            elif _is_dense(member):
                self._name_dense(name, *member)
            elif hasattr(member, "apply"):  # a matrix alone, for an operation
                self._name_dense(name, member.weight, member.bias)
            elif name == "activate":
                _wrap(layer, name, "activation")

    def _name_model(self, model: object) -> None:
        """Name the ends. Of their linears only the head is ever applied."""
        _wrap(model, "embed", "embed")
        members = [one for _, one in _members(model)]
        dense = [one for one in members if _is_dense(one)]
        for one in dense:
            self._name_dense("head", *one)
        if not dense:
            heads = {id(one): one for one in members if isinstance(one, LinearMethod)}
            for method in heads.values():
                self._name_linear("head", method)

    def _name_dense(self, name: str, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """Name a matrix that operations of the table are called with."""
        self.linears.setdefault(name, []).append(Linear.of(weight, bias))
        self._weights[weight.data_ptr()] = name

    def _name_linear(self, name: str, method: LinearMethod) -> None:
        seen = Linear(method.resident_bytes())
        self.linears.setdefault(name, []).append(seen)
        apply = method.apply

        @wraps(apply)
        def named(x: torch.Tensor, *rest: Any) -> torch.Tensor:  # noqa: ANN401
            with record_function(PREFIX + name):
                result = apply(x, *rest)
            seen.inputs, seen.outputs = x.shape[-1], result.shape[-1]
            return result

        _put(method, "apply", named)

    def _name_operations(self, ops: object) -> None:
        for name, function in _members(ops):
            if callable(function):
                _put(ops, name, self._named_operation(function, _OPERATIONS.get(name, name)))

    def _named_operation(self, function: Callable[..., Any], usual: str) -> Callable[..., Any]:
        @wraps(function)
        def named(*given: Any, **by_name: Any) -> Any:  # noqa: ANN401
            tensors = (one for one in given if isinstance(one, torch.Tensor))
            parts = (self._weights.get(one.data_ptr()) for one in tensors)
            label = next((part for part in parts if part), usual)
            with record_function(PREFIX + label):
                return function(*given, **by_name)

        return named

    def _follow(self, executor: TorchExecutor) -> None:
        launch = executor.launch

        @wraps(launch)
        def followed(step: Step) -> None:
            lengths = step.starts[1:] - step.starts[:-1]
            rows = int((step.rows == Rows.LAST).sum())
            self.steps.append(StepWork(lengths, step.context, rows))
            launch(step)

        _put(executor, "launch", followed)


def _name_attention(backend: AttentionBackend) -> None:
    forward, prepare = backend.forward, backend.prepare

    @wraps(forward)
    def attend(*given: Any, **named: Any) -> None:  # noqa: ANN401
        meta: AttentionMeta = named["meta"] if "meta" in named else given[5]
        decodes = meta.decode_requests == len(meta.host_context)
        with record_function(PREFIX + (DECODE if decodes else PREFILL)):
            forward(*given, **named)

    @wraps(prepare)
    def fuse(*given: Any, **named: Any) -> torch.Tensor | None:  # noqa: ANN401
        with record_function(PREFIX + "rope"):
            return prepare(*given, **named)

    _put(backend, "forward", attend)
    _put(backend, "prepare", fuse)


def _is_dense(member: object) -> bool:
    """Return whether this is what `LinearMethod.dense` gives."""
    return (
        isinstance(member, tuple)
        and len(member) == 2
        and isinstance(member[0], torch.Tensor)
        and member[0].dim() == 2
    )


def _members(owner: object) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object, in slots or not."""
    names = dict.fromkeys((*getattr(type(owner), "__slots__", ()), *vars(owner)))
    for name in names:
        yield name, getattr(owner, name)


def _wrap(owner: object, name: str, label: str) -> None:
    function: Callable[..., Any] = getattr(owner, name)

    @wraps(function)
    def named(*given: Any, **by_name: Any) -> Any:  # noqa: ANN401
        with record_function(PREFIX + label):
            return function(*given, **by_name)

    _put(owner, name, named)


def _put(owner: object, name: str, value: object) -> None:
    """Set an attribute of this object alone; its class stays as it is."""
    setattr(owner, name, value)
