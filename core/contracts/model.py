"""ModelFamily and Model: an architecture, as layers of explicit tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from camshaft.checkpoint import Checkpoint, CheckpointTensor, ModelConfig

    from .attention import AttentionLayer, AttentionSpec
    from .ops import Ops
    from .quant import Quantizer, StepContext


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Sizes that memory plans, rooflines and predictors count with.

    Attributes:
        name: Served name.
        layers: Number of layers.
        hidden: C.
        vocab: V, rows of the head.
        parameters: Weights touched for one token.
        weight_bytes: Resident bytes of all weights.
        max_context: Longest sequence.
    """

    name: str
    layers: int
    hidden: int
    vocab: int
    parameters: int
    weight_bytes: int
    max_context: int


class GroupPlan(NamedTuple):
    """A KV group that a model asks for: its layers and what they need of attention."""

    layers: tuple[int, ...]
    spec: AttentionSpec


class Handover(NamedTuple):
    """What passes from layer to layer, and from stage to stage of a pipeline.

    Attributes:
        hidden: [T, C].
        residual: [T, C] still to be added, or None; its dtype may be wider than that of `hidden`.
    """

    hidden: torch.Tensor
    residual: torch.Tensor | None


class Layer(ABC):
    """A layer is three calls: `before`, attention over the pages, `after`."""

    attention: AttentionLayer

    @abstractmethod
    def before(self, handover: Handover, step: StepContext) -> tuple[torch.Tensor, Handover]:
        """Return the projected qkv [T, (H + G) * D + G * Dv], unrotated, and what `after` needs."""

    @abstractmethod
    def after(self, attended: torch.Tensor, carried: Handover, step: StepContext) -> Handover:
        """Finish the layer from the attention's output [T, H * Dv]."""


class Model(ABC):
    """A built range of layers. Stateless between steps; knows no requests and no pages.

    Attributes:
        facts: Sizes.
        layers: In order.
        recordable: Whether its steps may be recorded as graphs. Without that they run eagerly.
    """

    facts: ModelFacts
    layers: Sequence[Layer]
    recordable: bool = True

    @property
    def attentions(self) -> Sequence[AttentionLayer]:
        """What each layer attends with, in order."""
        return [layer.attention for layer in self.layers]

    @abstractmethod
    def embed(self, tokens: torch.Tensor, step: StepContext) -> Handover:
        """Return the embeddings of int64 ids [T]. Only on the first stage."""

    @abstractmethod
    def norm(self, handover: Handover) -> torch.Tensor:
        """Return the hidden states [T, C] that the head reads. Only on the last stage."""

    @abstractmethod
    def logits(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        """Return float32 logits [Q, V] of selected rows [Q, C]. Only on the last stage."""


class WholeModel(Model):
    """A model that is not cut into layers: it runs in one call, which calls back to attend.

    For code of others, which attends somewhere inside. Such a model is whole on every device, its
    steps with prompts are not recorded in pieces, and nano-batches run one after the other.
    """

    layers = ()

    @property
    @abstractmethod
    def attentions(self) -> Sequence[AttentionLayer]:
        """What each layer attends with, in order."""

    @abstractmethod
    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Callable[[AttentionLayer, torch.Tensor], torch.Tensor],
        step: StepContext,
    ) -> Handover:
        """Run everything up to what `norm` takes.

        Args:
            tokens: int64 [T] ids, of many requests side by side. Nothing but `attend` may let one
                of them depend on another.
            positions: int64 [T].
            attend: Takes a layer and its qkv [T, (H + G) * D + G * Dv], and returns what it
                attended to: [T, H * Dv]. To be called once for each of `attentions`, in order.
            step: The step.
        """


@dataclass(frozen=True, slots=True)
class ModelParts:
    """What a family builds with.

    Attributes:
        quantizer: Makes the linears.
        ops: The operations table.
        dtype: Of activations, torch's name.
        device: Torch's name.
        deterministic: See `AttentionSpec`.
        max_context: Positions that will be asked for.
        layers: Half-open range to build; (0, all) without a pipeline.
        rank: Of this process in its tensor-parallel group.
        ranks: Size of that group.
    """

    quantizer: Quantizer
    ops: Ops
    dtype: str
    device: str
    deterministic: bool
    max_context: int
    layers: tuple[int, int]
    rank: int = 0
    ranks: int = 1


class ModelFamily(ABC):
    """Builds models of some architectures. Constructed as `Family(settings)`."""

    @staticmethod
    @abstractmethod
    def supports(config: ModelConfig) -> list[str]:
        """Return every reason why a model with this configuration cannot be built, in words."""

    def conflicts(self, quantizer: str, *, deterministic: bool) -> list[str]:
        """Return why its models cannot have their linears from a quantizer, or be deterministic.

        Args:
            quantizer: Name of the component.
            deterministic: See `AttentionSpec`.
        """
        return []

    @abstractmethod
    def groups(self, config: ModelConfig, page_tokens: int, dtype: str) -> Sequence[GroupPlan]:
        """Return the KV groups, the full one first."""

    @abstractmethod
    def names(self, config: ModelConfig, layout: str) -> Mapping[str, str]:
        """Map this family's own weight names to those of a checkpoint layout (`hf` or `gguf`)."""

    @abstractmethod
    def build(self, checkpoint: Checkpoint, parts: ModelParts) -> Model:
        """Build and load, or randomise when the checkpoint has no tensors.

        Raises:
            CheckpointError: A tensor is missing or misshapen; names file and tensor. Tensors that
                nothing asked for give one warning.
        """

    def load(self, model: Model, tensors: Mapping[str, CheckpointTensor]) -> None:
        """Replace the weights of a built model, for families that can.

        Raises:
            NotImplementedError: The default.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot replace weights.")
