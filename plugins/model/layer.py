"""One layer of a dense decoder, as the two halves around its attention.

`DecoderLayer` applies linears in whatever form they are stored. `FusedLayer` is for linears that
are plain matrices: operations of the table take them together with the norms and gates beside.
Deterministic models take them one by one, as `RowLinear`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from camshaft.contracts.model import Handover, Layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.contracts.attention import AttentionLayer
    from camshaft.contracts.ops import Activation, Ops
    from camshaft.contracts.quant import LinearMethod, StepContext


@dataclass(frozen=True, slots=True, eq=False)
class RowLinear:
    """A plain matrix, by the operation whose rows do not depend on each other."""

    ops: Ops
    weight: torch.Tensor
    bias: torch.Tensor | None

    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `LinearMethod.apply`."""
        return self.ops.row_linear(x, self.weight, self.bias)

    def apply_then(
        self, x: torch.Tensor, step: StepContext, then: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """See `LinearMethod.apply_then`."""
        return then(self.apply(x, step))

    def dense(self) -> None:
        """Return None: it is not to be fused."""


@dataclass(slots=True, eq=False)
class DecoderLayer(Layer):
    """Norm, attention, norm, gated feed-forward; the residual is added by the norm that follows.

    Attributes:
        attention: What the executor attends with.
        ops: The operations table.
        activate: Turns [T, 2 * I] into [T, I].
        norm_eps: Of both norms.
        attention_norm: [C].
        qkv: [C] to queries, keys and values side by side.
        out: [H * D] to [C].
        mlp_norm: [C].
        gate_up: [C] to gate and up side by side.
        down: [I] to [C].
    """

    attention: AttentionLayer
    ops: Ops
    activate: Callable[[torch.Tensor], torch.Tensor]
    norm_eps: float
    attention_norm: torch.Tensor
    qkv: LinearMethod | RowLinear
    out: LinearMethod | RowLinear
    mlp_norm: torch.Tensor
    gate_up: LinearMethod | RowLinear
    down: LinearMethod | RowLinear

    def by_rows(self) -> DecoderLayer:
        """Return this layer with those of its linears that are plain matrices as `RowLinear`."""

        def alone(linear: LinearMethod | RowLinear) -> LinearMethod | RowLinear:
            dense = linear.dense()
            return linear if dense is None else RowLinear(self.ops, *dense)

        return replace(
            self,
            qkv=alone(self.qkv),
            out=alone(self.out),
            gate_up=alone(self.gate_up),
            down=alone(self.down),
        )

    def before(self, handover: Handover, step: StepContext) -> tuple[torch.Tensor, Handover]:
        """See `Layer.before`."""
        hidden, residual = handover
        if residual is None:
            residual = hidden
            normed = self.ops.rms_norm(hidden, self.attention_norm, self.norm_eps)
        else:
            normed, residual = self.ops.add_rms_norm(
                hidden, residual, self.attention_norm, self.norm_eps
            )
        return self.qkv.apply(normed, step), Handover(normed, residual)

    def after(self, attended: torch.Tensor, carried: Handover, step: StepContext) -> Handover:
        """See `Layer.after`."""
        assert carried.residual is not None
        hidden = self.out.apply(attended, step)
        normed, residual = self.ops.add_rms_norm(
            hidden, carried.residual, self.mlp_norm, self.norm_eps
        )
        activated = self.gate_up.apply_then(normed, step, self.activate)
        return Handover(self.down.apply(activated, step), residual)


Dense = tuple[torch.Tensor, torch.Tensor | None]
"""A weight [N, K] and its bias [N], if it has one."""


@dataclass(slots=True, eq=False)
class FusedLayer(Layer):
    """The same layer in fewer operations. Attributes are those of `DecoderLayer`."""

    attention: AttentionLayer
    ops: Ops
    activation: Activation
    norm_eps: float
    attention_norm: torch.Tensor
    qkv: Dense
    out: Dense
    mlp_norm: torch.Tensor
    gate_up: Dense
    down: Dense

    @classmethod
    def of(cls, layer: DecoderLayer, activation: Activation) -> FusedLayer | None:
        """Return this form of a layer, or None if one of its linears is no plain matrix."""
        qkv, out, gate_up, down = (
            one.dense() for one in (layer.qkv, layer.out, layer.gate_up, layer.down)
        )
        if qkv is None or out is None or gate_up is None or down is None:
            return None
        return cls(
            attention=layer.attention,
            ops=layer.ops,
            activation=activation,
            norm_eps=layer.norm_eps,
            attention_norm=layer.attention_norm,
            qkv=qkv,
            out=out,
            mlp_norm=layer.mlp_norm,
            gate_up=gate_up,
            down=down,
        )

    def before(self, handover: Handover, step: StepContext) -> tuple[torch.Tensor, Handover]:
        """See `Layer.before`."""
        hidden, residual = handover
        qkv, total = self.ops.norm_linear(
            hidden, residual, self.attention_norm, self.norm_eps, *self.qkv
        )
        return qkv, Handover(hidden, total)

    def after(self, attended: torch.Tensor, carried: Handover, step: StepContext) -> Handover:
        """See `Layer.after`."""
        hidden = self.ops.linear(attended, *self.out)
        activated, total = self.ops.norm_gated_linear(
            hidden, carried.residual, self.mlp_norm, self.norm_eps, *self.gate_up, self.activation
        )
        return Handover(self.ops.linear(activated, *self.down), total)


def row_by_row(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return an elementwise function that sees one row at a time, for deterministic models.

    Threads divide a large tensor in the middle of rows, and the elements at such a border take a
    scalar path that differs from the vector path in the last bit (`silu`: 1 in 100,000).
    """

    def apply(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([function(row) for row in x.split(1)])

    return apply
