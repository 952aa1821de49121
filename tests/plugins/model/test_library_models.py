"""Which models of the transformers library are served, and how they are built."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch

from camshaft.checkpoint import Checkpoint, ModelConfig, TextSource, open_checkpoint
from camshaft.checkpoint.hf_config import read_hf_config
from camshaft.component import Settings
from camshaft.contracts.model import Model, ModelParts, WholeModel
from camshaft.errors import CheckpointError, PluginError, RecipeError
from camshaft.plugins.model.transformers import weights
from camshaft.plugins.model.transformers.family import TransformersFamily
from camshaft.plugins.model.transformers.stack import LibraryModel
from camshaft.testing.model import ModelFamilyContract
from camshaft.testing.tensors import stored_tensor
from camshaft.testing.toy import toy_recipe

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


def config(name: str, **fields: Any) -> ModelConfig:
    return read_hf_config({"model_type": name, **SHAPE, **fields}, "config.json")


def stated(name: str, **fields: Any) -> ModelConfig:
    """Whatever a file may say, also what the reader of configurations stops."""
    content = {"model_type": name, **SHAPE, **fields}
    return ModelConfig(name, 32, 48, 2, 4, 2, 8, 64, 64, stated=content)


def family() -> TransformersFamily:
    return TransformersFamily(Settings())


def parts(**changes: Any) -> ModelParts:
    fields = {"dtype": "float32", "device": "cpu", "deterministic": False, "max_context": 64}
    none: Any = None
    return ModelParts(quantizer=none, ops=none, **{"layers": (0, 2), **fields, **changes})


def random_weights(model: ModelConfig, seed: int = 0) -> Checkpoint:
    text = TextSource("bytes", Path("toy"))
    return Checkpoint("toy", model, "hf", None, (), text, random_seed=seed)


def drawn(config: ModelConfig) -> dict[str, Any]:
    """Draw tensors of the library's own names and shapes, none of them all zeros or ones."""
    module = weights.filled(random_weights(config), parts())
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, one in module.named_parameters():
        values = torch.randn(one.shape, generator=generator)
        values = values / one.shape[-1] ** 0.5 if one.ndim > 1 else 1 + values / 4
        tensors[name] = stored_tensor(name, values)
    return tensors


class TestContract(ModelFamilyContract):
    def make(self) -> TransformersFamily:
        return family()

    def configs(self) -> Sequence[ModelConfig]:
        sliding = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
        return [
            config("gpt_neox", rotary_pct=0.5, tie_word_embeddings=False),
            config("qwen2", use_sliding_window=True, max_window_layers=0, **sliding),
        ]

    def invent(self, config: ModelConfig, layout: Literal["hf", "gguf"]) -> Checkpoint:
        """The library takes what there is of a checkpoint, so it asks for no names."""
        file = Path("toy.gguf")
        return Checkpoint(
            "toy.gguf", config, layout, drawn(config), (file,), TextSource("bytes", file)
        )


@torch.inference_mode()
def logits(model: Model, count: int = 5) -> torch.Tensor:
    """Return logits of a model that attends to nothing."""
    assert isinstance(model, WholeModel)

    def nothing(layer: Any, qkv: torch.Tensor) -> torch.Tensor:
        return qkv.new_zeros(len(qkv), layer.heads * layer.value_dim)

    step: Any = None
    handover = model.run(torch.arange(count), torch.arange(count), nothing, step)
    return model.logits(model.norm(handover), step)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (stated("decoder"), "'decoder' is no model_type of transformers"),
        (stated("t5"), "'t5' is an encoder-decoder"),
        (stated("vit"), "transformers has no causal language model for 'vit'"),
        (stated("bloom"), "BloomForCausalLM does not attend through the attention interface"),
        (stated("mamba"), "MambaForCausalLM does not attend through the attention interface"),
        (stated("recurrent_gemma"), "keeps states beside keys and values"),
        (stated("bert"), "its tokens attend to later ones"),
        (stated("doge"), "it masks its scores in a way of its own"),
        (stated("diffllama"), "it attends 4 times in 2 layers"),
        (stated("nemotron", head_dim=8), "is not handed the arguments of the model"),
        (stated("phi3", rope_parameters=LONG), "rope 'longrope' changes with the length"),
        (stated("llama", rope_parameters=DYNAMIC), "rope 'dynamic' changes with the length"),
        (stated("gemma3_text", use_bidirectional_attention=True), "attends in both directions"),
        (stated("lfm2", layer_types=["conv", "full_attention"]), "layers of type conv are not"),
        (
            stated("llama4_text", layer_types=["chunked_attention", "full_attention"]),
            "layers of type chunked_attention are not served",
        ),
        (stated("llama", hidden_size="wide"), "transformers refuses its config.json"),
        (ModelConfig("llama", 32, 48, 2, 4, 2, 8, 64, 64), "GGUF files do not have"),
    ],
    ids=lambda value: value.architecture if isinstance(value, ModelConfig) else "",
)
def test_what_cannot_be_served_is_refused_by_name(model: ModelConfig, reason: str) -> None:
    reasons = family().supports(model)
    assert any(reason in one for one in reasons), reasons
    with pytest.raises(CheckpointError, match="toy: "):
        family().build(random_weights(model), parts())


def test_a_multimodal_model_is_refused_by_name() -> None:
    model = ModelConfig("gemma3", 32, 48, 2, 4, 2, 8, 64, 64, stated={"model_type": "gemma3"})
    assert family().supports(model) == ["'gemma3' is multimodal, and only text is served"]


def test_a_convolution_or_an_index_lets_tokens_meet_outside_attention() -> None:
    from camshaft.plugins.model.transformers.refusals import module_faults

    assert module_faults(torch.nn.Linear(2, 2)) == []
    convolution = torch.nn.Sequential(torch.nn.Conv1d(2, 2, 1))
    assert module_faults(convolution) == ["Conv1d lets tokens meet outside attention"]


def test_windows_are_those_that_the_library_would_mask() -> None:
    from camshaft.plugins.model.transformers.refusals import asked_faults

    def asked(window: int | None) -> Any:
        options = {"sliding_window": window}
        return SimpleNamespace(mask=None, module=object(), options=options)

    types = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    library = SimpleNamespace(sliding_window=9, **types)
    assert asked_faults(library, [asked(9), asked(None)]) == []
    assert "other windows" in asked_faults(library, [asked(8), asked(None)])[0]
    library = SimpleNamespace(sliding_window=9, num_hidden_layers=2)
    assert asked_faults(library, [asked(9), asked(9)]) == []
    assert "which of them slide" in asked_faults(library, [asked(None), asked(None)])[0]


def test_a_quantizer_and_the_deterministic_mode_are_refused_at_check_time() -> None:
    from camshaft.compose import draw

    changes = {"model": {"config": {"model_type": "gpt2", **SHAPE}, "use": "transformers"}}
    with pytest.raises(RecipeError) as error:
        draw(toy_recipe(changes=changes, overrides=["quant=gguf"]))
    texts = [fault.text for fault in error.value.faults]
    assert any("quant 'gguf' cannot hold; say `quant: none`" in text for text in texts)
    assert any("say `engine: {deterministic: false}`" in text for text in texts)


def test_layers_are_grouped_by_what_they_ask_of_attention() -> None:
    model = config("gemma2", head_dim=8, sliding_window=9, attn_logit_softcapping=2.0)
    full, sliding = family().groups(model, 16, "float32")
    assert (full.layers, full.spec.window, full.spec.soft_cap) == ((1,), 0, 2.0)
    assert (sliding.layers, sliding.spec.window) == ((0,), 9)
    assert (full.spec.heads, full.spec.kv_heads, full.spec.head_dim) == (4, 2, 8)


def test_the_first_component_that_runs_an_architecture_is_taken() -> None:
    from camshaft.compose import draw

    def chosen(name: str) -> str:
        changes = {"model": {"config": {"model_type": name, **SHAPE}}}
        overrides = ["engine.deterministic=false"]
        return type(draw(toy_recipe(changes=changes, overrides=overrides)).family).__name__

    assert chosen("llama") == "DecoderFamily"
    assert chosen("gpt_neox") == "TransformersFamily"


def test_random_weights_follow_the_seed_and_leave_other_random_numbers_alone() -> None:
    model = config("gpt_neox")
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (
        family().build(random_weights(model, seed), parts()) for seed in (7, 7, 8)
    )
    assert torch.equal(torch.rand(1), wanted)
    assert torch.equal(logits(first), logits(again))
    assert not torch.equal(logits(first), logits(other))


def test_facts_count_tied_weights_once_and_only_the_experts_of_a_token() -> None:
    tied = family().build(random_weights(config("gpt2")), parts()).facts
    assert (tied.layers, tied.hidden, tied.vocab, tied.max_context) == (2, 32, 64, 64)
    linears = 2 * 12 * 32**2
    assert linears + 64 * 32 < tied.parameters < linears + 2 * 64 * 32 + 2000
    assert tied.weight_bytes == 4 * tied.parameters
    experts = {"num_local_experts": 4, "num_experts_per_tok": 1}
    mixed = family().build(random_weights(config("mixtral", **experts)), parts()).facts
    idle, looked_up = 2 * 3 * 3 * 32 * 48, 64 * 32
    tables = mixed.weight_bytes / 4 - mixed.parameters - idle - looked_up
    assert 0 < tables < 32  # frequencies of rotary positions


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("gpt2")
    GPT2LMHeadModel(GPT2Config(**SHAPE)).save_pretrained(folder)
    return folder


def changed(saved: Path, **tensors: torch.Tensor | None) -> Checkpoint:
    """Open a model with other tensors; None takes one out."""
    from dataclasses import replace

    checkpoint = open_checkpoint(str(saved))
    held: dict[str, Any] = dict(checkpoint.tensors or {})
    for name, values in tensors.items():
        full = name.replace("__", ".")
        held.pop(full, None)
        if values is not None:
            held[full] = stored_tensor(full, values)
    return replace(checkpoint, tensors=held)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, r"model\.safetensors: tensor 'transformer\.h\.1\.ln_1\.weight' is missing"),
        (torch.ones(31), r"'transformer\.h\.1\.ln_1\.weight' is \[31\]; .* makes it \[32\]"),
    ],
)
def test_a_missing_or_misshapen_tensor_is_an_error_that_names_it(
    saved: Path, values: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        family().build(changed(saved, transformer__h__1__ln_1__weight=values), parts())


def test_unknown_tensors_give_one_warning_that_names_them(
    saved: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.WARNING):
        family().build(open_checkpoint(str(saved)), parts())
        assert caplog.text == ""
        family().build(changed(saved, alien=torch.ones(2)), parts())
    assert caplog.text.count("nothing uses alien") == 1
    assert capfd.readouterr().err == "", "reports and bars of the library stay off the terminal"


def test_names_are_those_of_the_tensors_that_are_read(saved: Path) -> None:
    checkpoint = open_checkpoint(str(saved))
    names = family().names(checkpoint.config, "hf")
    assert sorted(names.values()) == sorted(checkpoint.tensors or {})


def test_parts_of_a_model_are_refused(saved: Path) -> None:
    for changes in ({"ranks": 2}, {"layers": (0, 1)}):
        with pytest.raises(PluginError, match="one rank, all layers together"):
            family().build(open_checkpoint(str(saved)), parts(**changes))


def test_a_model_whose_tokens_meet_outside_attention_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    plain = GPT2MLP.forward
    monkeypatch.setattr(GPT2MLP, "forward", lambda self, x: plain(self, x) + x.mean(1, True))
    with pytest.raises(CheckpointError, match="GPT2LMHeadModel: tokens meet outside attention"):
        family().build(open_checkpoint(str(saved)), parts())


def test_a_head_that_looks_at_more_than_hidden_states_is_refused(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import GPT2LMHeadModel

    plain = GPT2LMHeadModel.forward

    def forward(self: Any, input_ids: Any = None, **rest: Any) -> Any:
        output = plain(self, input_ids, **rest)
        output.logits = output.logits + (0 if input_ids is None else input_ids[..., None])
        return output

    monkeypatch.setattr(GPT2LMHeadModel, "forward", forward)
    with pytest.raises(CheckpointError, match="its head cannot be taken off its layers"):
        family().build(open_checkpoint(str(saved)), parts())


def test_weights_that_are_stored_as_they_are_used_share_the_file(saved: Path) -> None:
    checkpoint = open_checkpoint(str(saved))
    module = weights.filled(checkpoint, parts())
    name = "transformer.h.0.attn.c_attn.weight"
    used = dict(module.named_parameters())[name]
    assert used.data_ptr() == checkpoint.tensor(name).data.ctypes.data


@pytest.mark.parametrize(
    ("name", "fields", "device", "is_recordable"),
    [
        ("gpt2", {}, "meta", True),
        ("mixtral", {}, "meta", False),
        ("deepseek_v3", {"first_k_dense_replace": 2}, "meta", True),
        ("deepseek_v3", {"first_k_dense_replace": 1}, "meta", False),
        ("mixtral", {}, "cpu", True),
    ],
)
def test_experts_are_not_recorded_elsewhere_than_on_a_cpu(
    name: str, fields: dict[str, Any], device: str, is_recordable: bool
) -> None:
    from camshaft.plugins.model.transformers.interface import built, library_config
    from camshaft.plugins.model.transformers.stack import may_be_recorded

    with torch.device("meta"):
        module = built(library_config({"model_type": name, **SHAPE, **fields}), torch.bfloat16)
    assert may_be_recorded(module, device) == is_recordable


def test_a_model_says_whether_it_may_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    from camshaft.plugins.model.transformers import stack

    assert family().build(random_weights(config("mixtral")), parts()).recordable
    monkeypatch.setattr(stack, "may_be_recorded", lambda module, device: False)
    assert not family().build(random_weights(config("mixtral")), parts()).recordable


def test_embeddings_are_the_library_s(saved: Path) -> None:
    model = family().build(open_checkpoint(str(saved)), parts())
    assert isinstance(model, LibraryModel)
    none: Any = None
    assert model.embed(torch.tensor([3, 4]), none).hidden.shape == (2, 32)
    assert [one.index for one in model.attentions] == [0, 1]
    assert len(model.layers) == 0
