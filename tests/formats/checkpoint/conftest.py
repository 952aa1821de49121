"""Small model files, written by the reference libraries."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

LLAMA_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 48,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
}
LLAMA_METADATA: dict[str, Any] = {
    "llama.block_count": 1,
    "llama.context_length": 128,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}

GgufMaker = Callable[..., Path]
FolderMaker = Callable[..., Path]


@pytest.fixture
def make_gguf(tmp_path: Path) -> GgufMaker:
    """Write a GGUF file: `make(metadata, tensors, architecture=...)`; a list is an array."""
    from gguf import GGUFWriter

    def make(
        metadata: Mapping[str, Any] = LLAMA_METADATA,
        tensors: Mapping[str, np.ndarray] | None = None,
        architecture: str = "llama",
    ) -> Path:
        path = tmp_path / "model.gguf"
        writer = GGUFWriter(path, architecture)
        for key, value in metadata.items():
            adders: dict[str, Callable[[str, Any], None]]
            adders = {"bool": writer.add_bool, "int": writer.add_uint32, "str": writer.add_string}
            adders |= {"float": writer.add_float32, "list": writer.add_array}
            adders[type(value).__name__](key, value)
        if tensors is None:
            tensors = {"token_embd.weight": np.zeros((48, 64), np.float32)}
        for name, values in tensors.items():
            writer.add_tensor(name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


@pytest.fixture
def make_folder(tmp_path: Path) -> FolderMaker:
    """Write a model folder: `make({file: {tensor: shape}}, config)`, sharded if several files."""

    def make(
        files: Mapping[str, Mapping[str, tuple[int, ...]]], config: Mapping[str, Any] = LLAMA_CONFIG
    ) -> Path:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        for file, shapes in files.items():
            tensors = {name: torch.full(shape, 1.5) for name, shape in shapes.items()}
            save_file(tensors, folder / file)
        if len(files) > 1:
            placed = {name: file for file, shapes in files.items() for name in shapes}
            index = folder / "model.safetensors.index.json"
            index.write_text(json.dumps({"weight_map": placed}))
        return folder

    return make
