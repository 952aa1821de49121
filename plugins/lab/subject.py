"""What is measured: a composed engine's executor, and the sizes that its work is counted with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from camshaft.errors import CamshaftError
from camshaft.executor.torch_executor import TorchExecutor

from .roofline import AttentionShape, Shape

if TYPE_CHECKING:
    from camshaft.compose import Composed


def executor_of(composed: Composed, command: str) -> TorchExecutor:
    """Return the executor.

    Raises:
        CamshaftError: It is one that `command` cannot look into.
    """
    executor = composed.engine.parts.executor
    if not isinstance(executor, TorchExecutor):
        raise CamshaftError(f"engine {command} needs `engine.executor: torch`")
    return executor


def shape_of(composed: Composed, executor: TorchExecutor) -> Shape:
    """Return the sizes of a model and of its keys and values."""
    drawing, memory = composed.drawing, composed.memory
    facts = executor.parts.model.facts
    return Shape(
        hidden=facts.hidden,
        layers=facts.layers,
        vocab=facts.vocab,
        itemsize=getattr(torch, drawing.recipe.model.dtype).itemsize,
        attention=tuple(
            AttentionShape(
                layers=len(group.layers),
                heads=group.spec.heads,
                dims=group.spec.head_dim + group.spec.value_dim,
                window=group.spec.window,
                token_bytes=size / memory.page_tokens,
            )
            for group, size in zip(drawing.groups, memory.group_page_bytes, strict=True)
        ),
    )
