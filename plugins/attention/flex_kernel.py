"""One call of torch's flex_attention, compiled or as it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

Kernel = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Takes and returns what `attend` does."""


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mod: Callable[..., torch.Tensor] | None,
    mask: flex.BlockMask,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with n queries of each request.

    Args:
        q: [B, H, n, D].
        k: [B, G, keys, D].
        v: [B, G, keys, Dv].
        mod: Changes scores; torch's own form, which counts queries within the call.
        mask: Which keys each query sees.
        scale: Multiplies scores before `mod`.

    Returns:
        [B, H, n, Dv], and the log of the sum of exponentials, float32 [B, H, n].
    """
    result, extra = flex.flex_attention(
        q,
        k,
        v,
        score_mod=mod,
        block_mask=mask,
        scale=scale,
        enable_gqa=True,
        return_aux=flex.AuxRequest(lse=True),
    )
    assert extra.lse is not None
    return result, extra.lse


def compiled(backend: str | Callable[..., Any]) -> Kernel:
    """Return `attend`, compiled at its first call.

    Dynamo makes four forms, whatever sizes steps have: for one or for more requests with a token
    each, for prompts of up to or over `BLOCK` tokens. It counts forms by code object and refuses a
    ninth, so each caller gets a code object of its own.
    """
    own = FunctionType(attend.__code__.replace(), attend.__globals__)
    kernel: Kernel = torch.compile(own, dynamic=True, fullgraph=True, backend=backend)
    return kernel


def plain(*inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ANN401
    """Return what `attend` does without a compiler, score by score, in float32."""
    with uncompiled():
        return attend(*inputs)


@contextmanager
def uncompiled() -> Iterator[None]:
    """Throw the switch that torch offers for debugging score functions.

    Without it each call that is not compiled passes through dynamo, once more for each new shape.
    """
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    try:
        yield
    finally:
        flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = before
