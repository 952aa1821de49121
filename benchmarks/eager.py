"""Tokens re-checked against the same model run plainly: once more, eagerly, one request at a time.

The model is built a second time with the reference operations. Prompt and answer go through it in
one pass with dense causal attention: no pages, no graphs, no batch, no kernels of ours. Each token
of the answer must have the largest logit there, up to a near-tie: in bfloat16 two paths round
differently, and heads give logits in steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import scaled_dot_product_attention

from camshaft.contracts.model import ModelParts
from camshaft.contracts.quant import StepContext
from camshaft.errors import CamshaftError
from camshaft.ops import OpsTable, rope_qk_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.compose import Drawing
    from camshaft.contracts.attention import AttentionLayer
    from camshaft.contracts.model import Handover, Model
    from camshaft.plugins.lab.workloads import Job

NEAR_TIE = 4.0
"""Steps of the dtype at the largest logit that a token may lie below it."""

_ROWS = 256  # of logits at a time: 256 x 151,936 in float32 are 156 MB


@dataclass(frozen=True, slots=True)
class Checked:
    """How an answer compares.

    Attributes:
        tokens: Of the answer.
        equal: Of these, tokens with the largest logit.
        worst: Largest distance of a token's logit from the largest one, in steps of the dtype.
    """

    tokens: int
    equal: int
    worst: float

    @property
    def passed(self) -> bool:
        """Whether every difference is a near-tie."""
        return self.worst <= NEAR_TIE


class Eager:
    """The model of a drawing, built again."""

    def __init__(self, drawing: Drawing) -> None:
        self._dtype: torch.dtype = getattr(torch, drawing.recipe.model.dtype)
        self._device = drawing.hardware.device
        self._model: Model = drawing.family.build(
            drawing.checkpoint,
            ModelParts(
                quantizer=drawing.quantizer,
                ops=OpsTable(),
                dtype=drawing.recipe.model.dtype,
                device=self._device,
                deterministic=False,
                max_context=drawing.max_context,
                layers=(0, drawing.checkpoint.config.layers),
            ),
        )
        for layer in self._model.layers:
            one = layer.attention
            if one.window or one.soft_cap or one.sinks is not None:
                raise CamshaftError(
                    f"layer {one.index} has a window, a soft cap or sinks, which the eager "
                    "reference does not know; run with --no-check"
                )

    @torch.inference_mode()
    def check(self, prompt: Sequence[int], answer: Sequence[int]) -> Checked:
        """Compare each token of an answer with the largest logit before it."""
        ids = torch.tensor([*prompt, *answer[:-1]], device=self._device)
        wanted = torch.tensor(answer, device=self._device)
        hidden = self._hidden(ids)[len(prompt) - 1 :]
        equal, worst = 0, 0.0
        for start in range(0, len(answer), _ROWS):
            rows = hidden[start : start + _ROWS]
            logits = self._model.logits(rows, StepContext(tokens=len(rows)))
            own = logits.gather(1, wanted[start : start + _ROWS, None])[:, 0]
            best = logits.amax(dim=1)
            gaps = (best - own) / self._steps(best)
            equal += int((gaps == 0).sum())
            worst = max(worst, float(gaps.max()))
        return Checked(len(answer), equal, math.inf if math.isnan(worst) else worst)

    def _hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """Return what the head reads, [T, C]."""
        context = StepContext(tokens=len(ids))
        positions = torch.arange(len(ids), device=self._device)
        handover: Handover = self._model.embed(ids, context)
        for layer in self._model.layers:
            qkv, carried = layer.before(handover, context)
            attended = _attend(layer.attention, qkv, positions)
            handover = layer.after(attended, carried, context)
        return self._model.norm(handover)

    def _steps(self, values: torch.Tensor) -> torch.Tensor:
        """Return the distance between neighbouring numbers of the dtype at each value."""
        return torch.exp2(torch.floor(torch.log2(values.abs()))) * torch.finfo(self._dtype).eps


def _attend(layer: AttentionLayer, qkv: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Return causal attention over exactly these tokens, [T, H * D]."""
    q, k, v = (one.transpose(0, 1)[None] for one in rope_qk_norm(qkv, positions, layer))
    result = scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=layer.scale, enable_gqa=layer.heads != layer.kv_heads
    )
    return result[0].transpose(0, 1).reshape(len(qkv), -1)


def check_some(
    eager: Eager, jobs: Sequence[Job], answers: Sequence[Sequence[int]], count: int
) -> list[Checked]:
    """Check `count` requests of a run, spread over it evenly; all if there are fewer."""
    count = min(count, len(jobs))
    picked = [number * len(jobs) // count for number in range(count)]
    return [eager.check(jobs[number].prompt, answers[number]) for number in picked]
