"""Files damaged anywhere: refused by name, or read, but never a traceback of our own making."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from camshaft.checkpoint import open_checkpoint
from camshaft.cli import main
from camshaft.errors import CheckpointError
from camshaft.testing.toy import toy_mapping

from .conftest import LLAMA_METADATA, FolderMaker, GgufMaker

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n"
SHARD = "model-00001-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def damaged(content: bytes, header: int, times: int) -> Iterator[bytes]:
    """Cut the file, change bytes of its header, or put impossible numbers there."""
    chosen = random.Random(5)
    for _ in range(times):
        place = chosen.randrange(header)
        number = chosen.choice((0, 1, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little")
        new = chosen.choice((number, bytes([chosen.randrange(256)])))
        yield content[:place] + new + content[place + len(new) :]
        yield content[:place]


def refusals(source: Path, file: Path, contents: Iterator[bytes]) -> list[str]:
    """Open a model with each content of a file; return what is said against it."""
    said = []
    for content in contents:
        file.write_bytes(content)
        try:
            open_checkpoint(str(source))
        except CheckpointError as error:
            said.append(str(error))
    return said


def test_a_gguf_file_with_a_damaged_header_is_refused_by_name(make_gguf: GgufMaker) -> None:
    tensors = {"token_embd.weight": np.zeros((48, 64), np.float32), "a": np.zeros(8, np.float16)}
    path = make_gguf({**LLAMA_METADATA, "tokenizer.ggml.tokens": ["t"] * 48}, tensors)
    content = path.read_bytes()
    said = refusals(path, path, damaged(content, content.index(b"token_embd") + 80, 200))
    assert 300 < len(said) < 400
    assert all(text.startswith(str(path)) for text in said)


@pytest.mark.parametrize("name", [SHARD, INDEX, "config.json"])
def test_a_folder_with_a_damaged_file_is_refused_by_name(
    make_folder: FolderMaker, name: str
) -> None:
    shards = {SHARD: {"a": (2, 3), "b": (4,)}, "model-00002-of-00002.safetensors": {"c": (3,)}}
    folder = make_folder(shards)
    content = (folder / name).read_bytes()
    changes = damaged(content, min(len(content), 150), 75)
    said = refusals(folder, folder / name, changes)
    assert 75 <= len(said) <= 150
    assert all(text.startswith(str(folder)) and name in text for text in said)


def test_json_nested_without_end_is_no_header(make_folder: FolderMaker) -> None:
    folder = make_folder({"model.safetensors": {"a": (2,)}})
    header = b"[" * 200_000
    path = folder / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the header is no JSON object"):
        open_checkpoint(str(folder))


def test_a_pointer_of_git_lfs_is_not_a_model(
    make_gguf: GgufMaker, make_folder: FolderMaker
) -> None:
    path, folder = make_gguf(), make_folder({"model.safetensors": {"a": (2,)}})
    path.write_bytes(POINTER)
    (folder / "model.safetensors").write_bytes(POINTER)
    for source in (path, folder):
        with pytest.raises(CheckpointError, match=r"pointer of Git LFS.*`git lfs pull`"):
            open_checkpoint(str(source))


@pytest.mark.parametrize("command", ["check", "explain"])
def test_QNT_02_commands_end_with_the_name_of_the_missing_shard(
    command: str, make_folder: FolderMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_folder({SHARD: {"a": (2,)}, "model-00002-of-00002.safetensors": {"c": (3,)}})
    (folder / SHARD).unlink()
    recipe = tmp_path / "recipe.yaml"
    mapping = toy_mapping()
    mapping["model"] = {"source": str(folder), "dtype": "float32", "name": "toy"}
    recipe.write_text(json.dumps(mapping))
    assert main([command, str(recipe)]) == 1
    assert f"{folder / SHARD}: the shard is missing" in capsys.readouterr().err
