"""Quantizer: how weights are stored and applied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from camshaft.checkpoint import CheckpointTensor

    from ..facts import DeviceFacts

Shard = Literal["column", "row", "replicated"]
Role = Literal["linear", "embedding", "head", "tied"]


@dataclass(frozen=True, slots=True)
class LinearSpec:
    """One linear of the model, maybe several of the checkpoint side by side.

    Attributes:
        name: Where it stands, such as `layers.3.qkv`.
        inputs: K on this rank.
        parts: Output rows of each part on this rank, such as (q, k, v); N is their sum.
        bias: Whether it has one.
        role: `embedding` is only looked up, `head` only applied, `tied` is both.
        shard: How it is split over ranks.
        dtype: Of activations, torch's name.
        device: Torch's name.
        deterministic: A row's result must not depend on the number of rows.
    """

    name: str
    inputs: int
    parts: tuple[int, ...]
    bias: bool = False
    role: Role = "linear"
    shard: Shard = "replicated"
    dtype: str = "float32"
    device: str = "cpu"
    deterministic: bool = False


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """The expert linears of one mixture-of-experts layer."""

    name: str
    experts: int
    hidden: int
    intermediate: int
    dtype: str
    device: str


@dataclass(slots=True)
class StepContext:
    """What linears and layers may need to know about the step.

    Attributes:
        tokens: T.
        adapters: int32 [T] adapter of each token, or None when all are 0.
        capture: The step is being recorded.
        positions: int64 [T] of each token, for models that embed them; None where a part of a model
            runs by itself, and in recordings.
    """

    tokens: int
    adapters: torch.Tensor | None = None
    capture: bool = False
    positions: torch.Tensor | None = None


class LinearMethod(ABC):
    """One linear in its stored form. Life: `load` for every part, `finish`, then `apply`.

    Attributes:
        input_format: `plain`, or the name of a quantised activation format that `apply` takes so
            that a norm before it can produce it.
    """

    input_format: str = "plain"

    @abstractmethod
    def load(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None = None) -> None:
        """Take the weight of one part, [rows of the part, K], in whatever form the file has.

        Args:
            part: Index into the spec's `parts`.
            tensor: Memory-mapped; not held after this call.
            rows: int64 order in which its rows are to be taken, or None.

        Raises:
            CheckpointError: The form cannot be used; names tensor and form.
        """

    @abstractmethod
    def load_bias(self, part: int, tensor: CheckpointTensor, rows: torch.Tensor | None) -> None:
        """Take the bias of one part."""

    @abstractmethod
    def randomize(self, generator: torch.Generator, std: float) -> None:
        """Fill with normal random weights instead of loading."""

    @abstractmethod
    def finish(self) -> None:
        """Pack what was loaded into its resident form and drop the rest.

        Raises:
            CheckpointError: A part is missing.
        """

    @abstractmethod
    def apply(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Return x [T, K] times the transposed weight plus bias: [T, N], in x's dtype."""

    def apply_wide(self, x: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Return the same in float32, by default from `apply`; for logits, which would tie."""
        return self.apply(x, step).float()

    def apply_then(
        self, x: torch.Tensor, step: StepContext, then: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return `then(apply(x, step))`: in one pass where this linear knows the operation."""
        return then(self.apply(x, step))

    def dense(self) -> tuple[torch.Tensor, torch.Tensor | None] | None:
        """Return the weight [N, K] and the bias, if `Ops.linear` with them may replace `apply`.

        For a deterministic spec, `Ops.row_linear`. None, the default, where there is no such
        matrix, or `apply` does something else with it: packed and prepacked weights, adapters.
        Asked once, after `finish`.
        """
        return None

    @abstractmethod
    def lookup(self, ids: torch.Tensor) -> torch.Tensor:
        """Return rows `ids` [T] of the weight in the spec's dtype: [T, K]. For embeddings."""

    @abstractmethod
    def dequantized(self) -> torch.Tensor:
        """Return the weight [N, K] in float32 as `apply` uses it; the reference in tests."""

    @abstractmethod
    def resident_bytes(self) -> int:
        """Return the bytes that the finished form occupies."""


class ExpertsMethod(ABC):
    """The experts of a layer in their stored form."""

    @abstractmethod
    def load(self, expert: int, part: str, tensor: CheckpointTensor) -> None:
        """Take `gate`, `up` or `down` of one expert."""

    @abstractmethod
    def finish(self) -> None:
        """Pack."""

    @abstractmethod
    def apply(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, step: StepContext
    ) -> torch.Tensor:
        """Return the weighted sum [T, C] over the experts `ids` [T, k] of x [T, C]."""


class Quantizer(ABC):
    """Makes methods for linears. Constructed as `Quantizer(settings)`."""

    @staticmethod
    @abstractmethod
    def supports(formats: Iterable[str], dtype: str, facts: DeviceFacts) -> list[str]:
        """Return every reason why weights in `formats` cannot be served in `dtype` there."""

    @abstractmethod
    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return an empty method for one linear."""

    def experts(self, spec: ExpertsSpec) -> ExpertsMethod:
        """Return an empty method for the experts of a layer.

        Raises:
            PluginError: This quantizer has none, which is the default.
        """
        raise PluginError(f"{type(self).__name__} does not hold experts ({spec.name}).")

    def quantize(self, model: Any, calibration: Iterable[list[int]]) -> dict[str, Any]:  # noqa: ANN401
        """Produce quantised weights offline from a loaded model and token sequences.

        Raises:
            PluginError: This quantizer only reads, which is the default.
        """
        raise PluginError(f"{type(self).__name__} reads weights but does not make them.")
