"""`config.json`: four architectures, the generic one, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.checkpoint.config import GenerationDefaults, ModelConfig, Rope
from camshaft.checkpoint.hf_config import read_hf_config
from camshaft.errors import CheckpointError

from .conftest import LLAMA_CONFIG


def read(generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    return read_hf_config({**LLAMA_CONFIG, **changes}, "config.json", generation)


def test_a_small_llama_reads_with_the_defaults_of_its_class() -> None:
    assert read() == ModelConfig(
        architecture="llama",
        hidden=64,
        intermediate=96,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocab=48,
        context=128,
        rope=Rope(theta=10000.0),
        norm_eps=1e-6,
        layer_types=("full", "full"),
        eos_ids=(2,),
    )


def test_attention_bias_counts_for_the_output_only_where_the_class_says_so() -> None:
    llama = read(attention_bias=True, mlp_bias=True)
    assert (llama.attention_bias, llama.attention_out_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = read(model_type="qwen2")
    assert (qwen2.attention_bias, qwen2.attention_out_bias) == (True, False)
    qwen3 = read(model_type="qwen3")
    assert (qwen3.attention_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)


@pytest.mark.parametrize(
    ("changes", "window", "types"),
    [
        ({"model_type": "mistral", "sliding_window": 32}, 32, ("sliding", "sliding")),
        ({"model_type": "mistral"}, 4096, ("sliding", "sliding")),
        ({"model_type": "mistral", "sliding_window": None}, None, ("full", "full")),
        ({"model_type": "qwen2", "sliding_window": 32}, None, ("full", "full")),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 1},
            4096,
            ("full", "sliding"),
        ),
        (
            {
                "model_type": "qwen2",
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"],
            },
            8,
            ("sliding", "full"),
        ),
        ({"sliding_window": 32}, None, ("full", "full")),
    ],
)
def test_layers_slide_as_in_the_models_own_class(
    changes: dict[str, Any], window: int | None, types: tuple[str, ...]
) -> None:
    model = read(**changes)
    assert (model.sliding_window, model.layer_types) == (window, types)


def test_a_generic_decoder_sets_every_field_itself() -> None:
    model = read(
        model_type="decoder",
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=4,
        attention_sinks=True,
        attn_logit_softcapping=20.0,
        final_logit_softcapping=30.0,
        qk_norm=True,
    )
    assert model.layer_types == ("sliding", "full")
    assert (model.sliding_window, model.attention_sinks, model.qk_norm) == (4, True, True)
    assert (model.attention_softcap, model.logit_softcap) == (20.0, 30.0)


def test_a_misspelt_field_of_a_generic_decoder_is_refused() -> None:
    with pytest.raises(CheckpointError, match="qk_nrm is not a field.*did you mean 'qk_norm'"):
        read(model_type="decoder", qk_nrm=True)


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def test_llama3_rope_reads_alike_in_the_old_and_the_new_form() -> None:
    scaling = {"rope_type": "llama3", "original_max_position_embeddings": 32, **LLAMA3}
    expected = Rope(
        theta=5e5,
        kind="llama3",
        factor=8.0,
        original_context=32,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    assert read(rope_theta=5e5, rope_scaling=scaling).rope == expected
    assert read(rope_parameters={"rope_theta": 5e5, **scaling}).rope == expected


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({"type": "linear", "factor": 2.0}, Rope(kind="linear", factor=2.0, original_context=128)),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": 32, "mscale": 0.7},
            Rope(kind="yarn", factor=4.0, original_context=32, mscale=0.7),
        ),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, Rope(rotary_share=0.5)),
    ],
)
def test_rope_scaling_is_read(scaling: dict[str, Any], expected: Rope) -> None:
    assert read(rope_parameters=scaling).rope == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "lama"}, "model_type 'lama' is not supported; did you mean 'llama'"),
        ({"model_type": None}, "model_type is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number of at least 1, not '64'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key heads"),
        ({"eos_token_id": 48}, "special id 48 is outside the vocabulary of 48"),
        ({"eos_token_id": [2, -5]}, "special id -5 is outside"),
        ({"rope_scaling": {"type": "ntk2"}}, "rope_type 'ntk2' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "beta": 1}}, "have no beta"),
        ({"rope_parameters": {"full_attention": {}}}, "of a kind of layer"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not supported"),
        ({"model_type": "mistral", "layer_types": []}, "layer_types does not belong"),
        ({"model_type": "decoder", "sliding_window": 4}, "need each other"),
        ({"model_type": "decoder", "layer_types": ["linear"]}, "layer_types may hold"),
    ],
)
def test_what_is_missing_unknown_or_impossible_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**changes)


def test_sizes_of_an_architecture_that_only_the_library_knows_have_its_names_and_defaults() -> None:
    pytest.importorskip("transformers")
    stated = {"model_type": "gpt2", "n_embd": 32, "n_head": 4, "vocab_size": 48, "eos_token_id": 3}
    model = read_hf_config(stated, "config.json", {"temperature": 0.6})
    assert (model.architecture, model.hidden, model.heads, model.head_dim) == ("gpt2", 32, 4, 8)
    assert (model.layers, model.context, model.eos_ids) == (12, 1024, (3,))
    assert (model.stated, model.generation.temperature) == (stated, 0.6)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"model_type": "t5"}, "'t5' is not supported: it is an encoder-decoder"),
        ({"model_type": "mamba"}, "'mamba' is not supported: it has no num_attention_heads"),
        ({"model_type": "gpt2", "n_embd": "wide"}, "transformers refuses it: .*n_embd|hidden_size"),
    ],
)
def test_what_the_library_or_a_decoder_cannot_be_is_refused(
    stated: dict[str, Any], message: str
) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(CheckpointError, match=message):
        read_hf_config(stated, "config.json")


def test_generation_config_gives_sampling_and_replaces_eos() -> None:
    model = read({"eos_token_id": [2, 3], "temperature": 0.6, "top_k": 0, "top_p": 0.9})
    assert model.eos_ids == (2, 3)
    assert model.generation == GenerationDefaults(temperature=0.6, top_k=0, top_p=0.9)
    greedy = read({"do_sample": False, "temperature": 0.6})
    assert (greedy.generation.temperature, greedy.eos_ids) == (0.0, (2,))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3"])
def test_defaults_are_those_of_transformers(name: str) -> None:
    import transformers

    theirs = getattr(transformers, f"{name}Config")()
    short = {
        key: getattr(theirs, key)
        for key in (
            *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers"),
            *("num_attention_heads", "vocab_size"),
        )
    }
    assert read_hf_config(short, "short") == read_hf_config(
        {**theirs.to_dict(), "eos_token_id": None, "bos_token_id": None}, "whole"
    )


BERT = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2}


def test_an_encoder_reads_with_the_defaults_of_its_class() -> None:
    assert read_hf_config(BERT, "config.json") == ModelConfig(
        architecture="bert",
        hidden=32,
        intermediate=3072,
        layers=2,
        heads=4,
        kv_heads=4,
        head_dim=8,
        vocab=30522,
        context=512,
        norm_eps=1e-12,
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        hidden_act="gelu",
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position_embedding_type": "relative_key"}, "may be 'absolute', not 'relative_key'"),
        ({"num_attention_heads": 5}, "num_attention_heads must divide hidden_size, 32"),
        ({"layer_norm_eps": 0}, "layer_norm_eps must be a number above 0"),
    ],
    ids=str,
)
def test_an_encoder_that_is_not_understood_is_refused(changes: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_hf_config({**BERT, **changes}, "config.json")
