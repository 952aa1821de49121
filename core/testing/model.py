"""The contract of model families, as tests to inherit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
import torch

from camshaft.checkpoint import Checkpoint, CheckpointTensor, ModelConfig, TextSource

from ..contracts.model import Model, ModelFamily, ModelParts, WholeModel
from ..contracts.quant import StepContext
from ..errors import CheckpointError
from ..ops import OpsTable
from .dense import dense_logits, dense_states, run_layers
from .quantizer import RowByRow
from .tensors import stored_tensor

if TYPE_CHECKING:
    from ..contracts.attention import AttentionLayer
    from ..contracts.ops import Ops

TOKENS = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7)


class ModelFamilyContract:
    """Subclass it, define `make` and `configs`, and run pytest.

    Models are built small, in float32, in deterministic mode, with weights drawn at random or
    invented to the shapes that the family asks for.

    Attributes:
        layouts: File layouts that the family reads.
        causal: Whether its models generate. Without that hidden states are compared in place of
            logits, and tokens see all others.
    """

    layouts: Sequence[Literal["hf", "gguf"]] = ("hf",)
    causal: bool = True

    def make(self) -> ModelFamily:
        """Return the family under test."""
        raise NotImplementedError

    def configs(self) -> Sequence[ModelConfig]:
        """Return configurations of two layers or more, small ones."""
        raise NotImplementedError

    def built(
        self, config: ModelConfig, checkpoint: Checkpoint | None = None, *, seed: int = 0
    ) -> Model:
        """Build all layers."""
        checkpoint = checkpoint or random_weights(config, seed)
        return self.make().build(checkpoint, model_parts(config))

    def test_what_it_builds_is_supported(self) -> None:
        """And nothing else: an unknown activation is refused in words."""
        for config in self.configs():
            assert self.make().supports(config) == []
            reasons = self.make().supports(_other(config, "hidden_act", "cube_root"))
            assert any("cube_root" in reason for reason in reasons)
            assert self.make().supports(_other(config, "architecture", "perceptron"))

    def test_groups_hold_every_layer_once_and_the_full_one_comes_first(self) -> None:
        """And say of attention what the layers say."""
        for config in self.configs():
            groups = self.make().groups(config, 4, "float32")
            assert sorted(at for group in groups for at in group.layers) == [*range(config.layers)]
            windows = [group.spec.window for group in groups]
            assert windows == sorted(windows)
            attentions = self.built(config).attentions
            assert [one.index for one in attentions] == [*range(config.layers)]
            for one in attentions:
                group = groups[one.group]
                assert one.index in group.layers
                spec = group.spec
                assert (spec.heads, spec.kv_heads) == (one.heads, one.kv_heads)
                assert (spec.head_dim, spec.value_dim) == (one.head_dim, one.value_dim)
                assert (spec.window, spec.soft_cap) == (one.window, one.soft_cap)
                assert spec.sinks == (one.sinks is not None)
                assert (spec.page_tokens, spec.dtype) == (4, "float32")

    def test_logits_are_float32_of_the_right_shape_and_depend_on_the_tokens(self) -> None:
        """Also with random weights, whose outputs tests compare: they must not be all alike."""
        for config in self.configs():
            logits = self.run(self.built(config))
            assert logits.shape == (len(TOKENS), config.vocab if self.causal else config.hidden)
            assert logits.dtype == torch.float32
            assert logits.isfinite().all()
            assert len(set(logits.argmax(dim=-1).tolist())) > 2
            changed = self.run(self.built(config), (TOKENS[0] + 1, *TOKENS[1:]))
            assert not torch.equal(changed[0], logits[0])
            assert not torch.equal(changed[4], logits[4])

    def test_a_later_token_changes_no_earlier_row(self) -> None:
        """Whatever a layer does outside attention, it does to each token alone."""
        if not self.causal:
            pytest.skip("its tokens see later ones")
        for config in self.configs():
            model = self.built(config)
            whole, part = self.run(model), self.run(model, TOKENS[:5])
            torch.testing.assert_close(whole[:5], part, rtol=1e-5, atol=1e-5)

    def test_deterministic_layers_work_row_by_row(self) -> None:
        """To the bit: every call gives a token the same as the same call on that token alone."""
        for config in self.configs():
            model, count = self.built(config), len(TOKENS)
            if isinstance(model, WholeModel):
                pytest.skip("it is not cut into layers, whose calls could be compared")
            together = StepContext(count, positions=torch.arange(count))
            with torch.inference_mode():
                layer, tokens = model.layers[0], torch.tensor(TOKENS)
                qkv, carried = layer.before(model.embed(tokens, together), together)
                width = layer.attention.heads * layer.attention.value_dim
                attended = torch.randn(count, width, generator=torch.Generator().manual_seed(1))
                hidden = model.norm(layer.after(attended, carried, together))
                logits = model.logits(hidden, together) if self.causal else hidden
                for row in (0, 3, count - 1):
                    alone = StepContext(1, positions=torch.tensor([row]))
                    one, rest = layer.before(model.embed(tokens[row : row + 1], alone), alone)
                    assert torch.equal(one[0], qkv[row])
                    last = model.norm(layer.after(attended[row : row + 1], rest, alone))
                    assert torch.equal(last[0], hidden[row])
                    last = model.logits(last, alone) if self.causal else last
                    assert torch.equal(last[0], logits[row])

    def test_tokens_of_a_whole_model_meet_in_attention_alone(self) -> None:
        """Up to rounding: given what it attended to, a token among others is as it is alone."""
        for config in self.configs():
            model, count = self.built(config), len(TOKENS)
            if not isinstance(model, WholeModel):
                pytest.skip("its layers are compared, to the bit")
            whole, asked = self.attending(model, range(count))
            assert asked == [one.index for one in model.attentions]
            for row in (0, 3, count - 1):
                alone, _ = self.attending(model, [row])
                torch.testing.assert_close(alone[0], whole[row], rtol=1e-4, atol=1e-4)

    def test_a_model_keeps_nothing_of_a_step(self) -> None:
        """The same tokens twice, with others between, give the same bits."""
        for config in self.configs():
            model = self.built(config)
            first = self.run(model)
            self.run(model, TOKENS[:3])
            assert torch.equal(self.run(model), first)

    def test_random_weights_follow_the_seed(self) -> None:
        """Every process of an engine draws the same ones."""
        for config in self.configs():
            first, again = (self.run(self.built(config, seed=7)) for _ in range(2))
            assert torch.equal(first, again)
            assert not torch.equal(first, self.run(self.built(config, seed=8)))

    def test_any_range_of_layers_builds_and_hands_over(self) -> None:
        """Stages of a pipeline together are the whole, also with weights drawn at random."""
        for config in self.configs():
            checkpoint = random_weights(config, 3)
            model = self.built(config, checkpoint)
            if isinstance(model, WholeModel):
                pytest.skip("it is whole on every device")
            whole = self.run(model)
            for cut in range(1, config.layers):
                first, second = (
                    self.make().build(checkpoint, model_parts(config, layers=span))
                    for span in ((0, cut), (cut, config.layers))
                )
                assert [one.attention.index for one in second.layers] == [
                    *range(cut, config.layers)
                ]
                step = StepContext(len(TOKENS), positions=torch.arange(len(TOKENS)))
                with torch.inference_mode():
                    handover = first.embed(torch.tensor(TOKENS), step)
                    for stage in (first, second):
                        handover = run_layers(stage.layers, OPS, handover, causal=self.causal)
                    logits = second.norm(handover)
                    logits = second.logits(logits, step) if self.causal else logits
                assert torch.equal(logits, whole)

    def test_facts_are_those_of_the_configuration(self) -> None:
        """Memory plans and rooflines count with them."""
        for config in self.configs():
            facts = self.built(config).facts
            assert (facts.layers, facts.hidden) == (config.layers, config.hidden)
            assert (facts.vocab, facts.max_context) == (config.vocab, 64)
            at_least = config.layers * config.hidden**2
            at_least += config.vocab * config.hidden if self.causal else 0
            assert facts.parameters > at_least
            assert facts.weight_bytes > 4 * at_least

    def test_names_are_exactly_the_tensors_that_are_read(self) -> None:
        """For every layout, each once."""
        for config, layout in self.cases():
            names = self.make().names(config, layout)
            read = self.invent(config, layout).tensors
            assert read is not None
            assert sorted(names.values()) == sorted(read)
            assert len(set(names.values())) == len(names)

    def test_every_tensor_has_an_effect(self) -> None:
        """A weight that is read and not used would leave the logits alone."""
        for config, layout in self.cases():
            checkpoint = self.invent(config, layout)
            before = self.run(self.built(config, checkpoint))
            assert checkpoint.tensors is not None
            for name in checkpoint.tensors:
                other = replace(checkpoint, tensors=_changed(checkpoint.tensors, name))
                assert not torch.equal(self.run(self.built(config, other)), before), name

    def test_a_missing_tensor_is_an_error_that_names_it(self) -> None:
        """Never random or empty weights: case QNT-02."""
        for config, layout in self.cases():
            checkpoint = self.invent(config, layout)
            assert checkpoint.tensors is not None
            for name in checkpoint.tensors:
                rest = {key: one for key, one in checkpoint.tensors.items() if key != name}
                with pytest.raises(CheckpointError) as error:
                    self.built(config, replace(checkpoint, tensors=rest))
                assert f"'{name}'" in str(error.value)
                assert "toy.gguf" in str(error.value)

    def test_a_misshapen_tensor_is_an_error_that_names_it(self) -> None:
        """With one row too many."""
        for config, layout in self.cases():
            checkpoint = self.invent(config, layout)
            assert checkpoint.tensors is not None
            for name, tensor in checkpoint.tensors.items():
                longer = torch.ones(tensor.shape[0] + 1, *tensor.shape[1:])
                wrong = {**checkpoint.tensors, name: stored_tensor(name, longer)}
                with pytest.raises(CheckpointError) as error:
                    self.built(config, replace(checkpoint, tensors=wrong))
                assert f"'{name}'" in str(error.value)
                assert "toy.gguf" in str(error.value)

    def test_unknown_tensors_give_one_warning_that_names_them(self) -> None:
        """They may be harmless, or a sign of another model. None give no warning."""
        for config, layout in self.cases():
            checkpoint = self.invent(config, layout)
            assert checkpoint.tensors is not None
            with _warnings() as texts:
                self.built(config, checkpoint)
            assert texts == []
            extra = {name: stored_tensor(name, torch.ones(2)) for name in ("alien.a", "alien.b")}
            more = replace(checkpoint, tensors={**checkpoint.tensors, **extra})
            with _warnings() as texts:
                self.built(config, more)
            assert len(texts) == 1
            assert "alien.a" in texts[0]
            assert "alien.b" in texts[0]

    def run(self, model: Model, tokens: Sequence[int] = TOKENS) -> torch.Tensor:
        """Return the logits of a sequence, or hidden states of a model without."""
        if self.causal:
            return run(model, tokens)
        return dense_states(model, OPS, tokens, causal=False)

    def attending(self, model: WholeModel, rows: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        """Run some tokens at their places, with values drawn for each place as what they attend to.

        Returns:
            Logits of these rows, and the layers that attended, in order.
        """
        asked: list[int] = []
        step = StepContext(len(rows), positions=torch.tensor(rows))

        def attend(layer: AttentionLayer, qkv: torch.Tensor) -> torch.Tensor:
            asked.append(layer.index)
            shape = len(TOKENS), layer.heads * layer.value_dim
            values = torch.randn(shape, generator=torch.Generator().manual_seed(layer.index))
            return values[list(rows)].to(qkv.dtype)

        tokens = torch.tensor([TOKENS[row] for row in rows])
        with torch.inference_mode():
            hidden = model.norm(model.run(tokens, torch.tensor(rows), attend, step))
            return (model.logits(hidden, step) if self.causal else hidden), asked

    def cases(self) -> list[tuple[ModelConfig, Literal["hf", "gguf"]]]:
        """Return every configuration with every layout."""
        return [(config, layout) for config in self.configs() for layout in self.layouts]

    def invent(self, config: ModelConfig, layout: Literal["hf", "gguf"]) -> Checkpoint:
        """Return a checkpoint that has whatever the family asks for, drawn at random."""
        checkpoint = Inventing("toy.gguf", config, layout, {}, (Path("toy.gguf"),), _TEXT)
        self.make().build(checkpoint, model_parts(config))
        tensors = checkpoint.tensors
        return Checkpoint("toy.gguf", config, layout, tensors, (Path("toy.gguf"),), _TEXT)


class Inventing(Checkpoint):
    """A checkpoint that makes up every tensor that it is asked for, and remembers it."""

    __slots__ = ()

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> CheckpointTensor:
        """Return a tensor of the shape asked for; a matrix keeps the size of what it maps."""
        assert shape is not None, f"'{name}': a family says which shape it expects"
        assert isinstance(self.tensors, dict)
        if name not in self.tensors:
            generator = torch.Generator().manual_seed(len(self.tensors))
            values = torch.randn(shape, generator=generator)
            values = values / shape[1] ** 0.5 if len(shape) == 2 else 1 + values / 4
            self.tensors[name] = stored_tensor(name, values)
        found: CheckpointTensor = self.tensors[name]
        return found


OPS: Ops = OpsTable()
_TEXT = TextSource("bytes", Path("toy.gguf"))


def run(model: Model, tokens: Sequence[int] = TOKENS) -> torch.Tensor:
    """Return the logits of a sequence."""
    return dense_logits(model, OPS, tokens)


def random_weights(config: ModelConfig, seed: int) -> Checkpoint:
    """Return a checkpoint without tensors."""
    return Checkpoint("toy", config, "hf", None, (), _TEXT, random_seed=seed)


def model_parts(config: ModelConfig, layers: tuple[int, int] | None = None) -> ModelParts:
    """Return what small models are built with: float32, deterministic, 64 positions."""
    return ModelParts(
        quantizer=RowByRow(),
        ops=OPS,
        dtype="float32",
        device="cpu",
        deterministic=True,
        max_context=64,
        layers=layers or (0, config.layers),
    )


def _other(config: ModelConfig, field: str, value: str) -> ModelConfig:
    """Replace a field, also where `config.json` stated it."""
    stated = config.stated
    if stated is not None:
        name = "model_type" if field == "architecture" else field
        stated = {**stated, name: value}
    changes: dict[str, Any] = {field: value, "stated": stated}
    return replace(config, **changes)


def _changed(tensors: Mapping[str, CheckpointTensor], name: str) -> dict[str, CheckpointTensor]:
    """Replace a tensor by one whose last rows are different."""
    values = tensors[name].dequantize().clone()
    generator = torch.Generator().manual_seed(99)
    values += torch.randn(values.shape, generator=generator) * values.abs().mean()
    return {**tensors, name: stored_tensor(name, values)}


class _Collector(logging.Handler):
    """Keeps the texts of warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text."""
        self.texts.append(record.getMessage())


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect the texts of warnings that are logged within."""
    collector, root = _Collector(), logging.getLogger()
    root.addHandler(collector)
    try:
        yield collector.texts
    finally:
        root.removeHandler(collector)
