"""A model of the library as the executor runs it: in one call that calls back to attend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from camshaft.contracts.attention import AttentionLayer
from camshaft.contracts.model import Handover, ModelFacts, WholeModel
from camshaft.errors import CheckpointError

from .examination import kinds, members, places
from .interface import Asked, call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from camshaft.checkpoint import Checkpoint
    from camshaft.contracts.model import ModelParts
    from camshaft.contracts.quant import StepContext

    from .examination import LayerShape

_TOKENS, _TRIES = 3, 3
_CHANGES = (3, 5, 8)
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class LibraryModel(WholeModel):
    """Everything up to the last norm in one part, the head with what scales its logits in another.

    The head is the library's model with its layers taken out: what stands in their place returns
    the hidden states that it is given.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        layers: Sequence[LayerShape],
        checkpoint: Checkpoint,
        parts: ModelParts,
    ) -> None:
        """Take a filled model apart.

        Raises:
            CheckpointError: It does not come apart, or tokens meet elsewhere than in attention.
        """
        whole: Any = module
        parameters = _touched(whole)
        self.recordable = may_be_recorded(whole, parts.device)
        weight_bytes = sum(one.nbytes for one in (*whole.parameters(), *whole.buffers()))
        self._base: Any = whole.base_model
        self._embedding = whole.get_input_embeddings()
        self._device = parts.device
        with torch.inference_mode():
            asked, logits, given = self._asked(whole)
            self._attentions = _attentions(layers, asked)
            self._head = whole
            setattr(whole, whole.base_model_prefix, _Given(type(given)))
            self._check(checkpoint.source, logits)
        self.facts = ModelFacts(
            name=checkpoint.source,
            layers=len(layers),
            hidden=given[0].shape[-1],  # what the head takes, which may be narrower than a layer
            vocab=checkpoint.config.vocab,
            parameters=parameters,
            weight_bytes=weight_bytes,
            max_context=parts.max_context,
        )

    @property
    def attentions(self) -> Sequence[AttentionLayer]:
        """See `WholeModel.attentions`."""
        return self._attentions

    def run(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Callable[[AttentionLayer, torch.Tensor], torch.Tensor],
        step: StepContext,
    ) -> Handover:
        """See `WholeModel.run`."""
        layers = iter(self._attentions)

        def attends(asked: Asked) -> torch.Tensor:
            qkv = torch.cat([one.flatten(1) for one in asked[:3]], dim=1)
            layer = next(layers)
            return attend(layer, qkv).view(-1, layer.heads, layer.value_dim)

        hidden: torch.Tensor = call(self._base, tokens, positions, attends)[0][0]
        return Handover(hidden, None)

    def embed(self, tokens: torch.Tensor, step: StepContext) -> Handover:
        """See `Model.embed`. Of no use to `run`, which begins with tokens."""
        return Handover(self._embedding(tokens), None)

    def norm(self, handover: Handover) -> torch.Tensor:
        """See `Model.norm`. The library's stack ends with it."""
        return handover.hidden

    def logits(self, hidden: torch.Tensor, step: StepContext) -> torch.Tensor:
        """See `Model.logits`. Computed in the dtype of the activations, as the library does."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return logits.float()

    def _asked(self, whole: Any) -> tuple[list[Asked], torch.Tensor, Any]:  # noqa: ANN401
        """Run the library's model as it is, attending to nothing.

        Returns:
            What the layers asked, float32 logits, and the output without the head.
        """
        asked: list[Asked] = []

        def attends(one: Asked) -> torch.Tensor:
            asked.append(one)
            return one.value.new_zeros(*one.query.shape[:2], one.value.shape[2])

        tokens, positions = (one.to(self._device) for one in places(_TOKENS))
        logits = call(whole, tokens, positions, attends).logits[0].float()
        return asked, logits, call(self._base, tokens, positions, attends)

    def _check(self, source: str, logits: torch.Tensor) -> None:
        """Compare with the library's logits, of its tokens and of some of them beside others."""
        tokens, positions = (one.to(self._device) for one in places(_TOKENS))
        every, fault = range(_TOKENS), ""
        # An expert may be chosen by the last bit, and with other tokens bits are others: one answer
        # that is right will do. What is wrong is wrong each time.
        if all(self._strays(tokens, positions, logits, every) for _ in range(_TRIES)):
            fault = "its head cannot be taken off its layers"
        for row in (0, _TOKENS - 1):
            changed = [(tokens + change) % logits.shape[1] for change in _CHANGES]
            for other in changed:
                other[row] = tokens[row]
            if all(self._strays(other, positions, logits, [row]) for other in changed):
                fault = fault or "tokens meet outside attention"
        if fault:
            name = type(self._head).__name__
            raise CheckpointError(f"{source}: model 'transformers' does not serve {name}: {fault}.")

    def _strays(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        logits: torch.Tensor,
        rows: Iterable[int],
    ) -> bool:
        """Return whether some of these rows have other logits than they should."""
        hidden = self.run(tokens, positions, _nothing, _ANY_STEP).hidden
        own = self.logits(hidden, _ANY_STEP)
        if own.shape != logits.shape:
            return True
        near = _TOLERANCE[hidden.dtype] * max(1.0, float(logits.abs().max()))
        return any(bool((own[row] - logits[row]).abs().max() > near) for row in rows)


class _Given(torch.nn.Module):
    """Stands in for a model's layers, and for whatever the head reaches through them."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, *_: object, inputs_embeds: torch.Tensor, **__: object) -> Any:  # noqa: ANN401
        """Return the hidden states that came as embeddings, in the type of the model's outputs."""
        return self._kind(last_hidden_state=inputs_embeds)

    def __getattr__(self, name: str) -> _Given:
        return self


_ANY_STEP: Any = None  # the library asks nothing of it


def _nothing(layer: AttentionLayer, qkv: torch.Tensor) -> torch.Tensor:
    return qkv.new_zeros(len(qkv), layer.heads * layer.value_dim)


def _attentions(layers: Sequence[LayerShape], asked: Sequence[Asked]) -> list[AttentionLayer]:
    """Return what the layers attend with; positions are applied by the library."""
    groups = {
        at: number for number, kind in enumerate(kinds(layers)) for at in members(layers, kind)
    }
    return [
        AttentionLayer(
            index=at,
            group=groups[at],
            heads=one.heads,
            kv_heads=one.kv_heads,
            head_dim=one.head_dim,
            value_dim=one.value_dim,
            scale=one.scale,
            window=one.window,
            soft_cap=one.soft_cap,
            sinks=asked[at].options["s_aux"].float() if one.sinks else None,
        )
        for at, one in enumerate(layers)
    ]


def _touched(module: Any) -> int:  # noqa: ANN401
    """Return how many weights one token is multiplied with: of experts those that it is sent to."""
    config = module.config
    most = getattr(config, "num_local_experts", None) or getattr(config, "num_experts", None) or 1
    share = min(1.0, (getattr(config, "num_experts_per_tok", None) or most) / most)
    looked_up = module.get_input_embeddings().weight
    head = module.get_output_embeddings()
    return sum(
        int(one.numel() * (share if ".experts." in name else 1))
        for name, one in _parameters(module)
        if one is not looked_up or (head is not None and head.weight is looked_up)
    )


def may_be_recorded(module: torch.nn.Module, device: str) -> bool:
    """Return whether decode steps may be graphs.

    How many tokens go to each expert is known on the device alone. Torch multiplies bfloat16 from
    Hopper on without asking; elsewhere it asks on the host, which no recording allows.
    """
    experts = [one for name, one in _parameters(module) if ".experts." in name]
    where = torch.device(device)
    if not experts or where.type == "cpu":
        return True
    is_half = where.type == "cuda" and experts[0].dtype is torch.bfloat16
    return is_half and torch.cuda.get_device_capability(where) >= (9, 0)


def _parameters(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return module.named_parameters()
