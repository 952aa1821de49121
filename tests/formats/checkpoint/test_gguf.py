"""GGUF files: what is read, and what a damaged one says."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from camshaft.checkpoint import GGUFFile
from camshaft.errors import CheckpointError

from .conftest import GgufMaker


def test_metadata_and_tensors_come_back_as_the_reference_wrote_them(make_gguf: GgufMaker) -> None:
    metadata = {"a.flag": True, "a.size": 7, "a.rate": 0.5, "a.text": "höi", "a.ids": [3, 1, 2]}
    metadata |= {"a.words": ["x", "", "ÿ y"], "a.flags": [True, False]}
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    file = GGUFFile(make_gguf(metadata, {"t": values, "u": values[0]}))
    assert file.metadata == {"general.architecture": "llama", **metadata}
    assert file.tensors["t"].shape == (2, 3)
    assert file.tensors["t"].dequantize().tolist() == values.tolist()
    assert file.tensors["u"].dequantize().tolist() == [0.0, 1.0, 2.0]


def test_writing_to_a_tensor_does_not_change_the_file(make_gguf: GgufMaker) -> None:
    path = make_gguf()
    before = path.read_bytes()
    GGUFFile(path).tensors["token_embd.weight"].dequantize().fill_(1.0)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kept", [0, 3, 4, 20, 40, 100, 300, 400])
def test_a_file_cut_anywhere_in_its_header_is_refused_by_name(
    make_gguf: GgufMaker, kept: int
) -> None:
    path = make_gguf()
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.gguf: .*(empty|end of the file)"):
        GGUFFile(path)


def test_GGF_02_a_file_cut_in_its_data_names_the_tensor(make_gguf: GgufMaker) -> None:
    path = make_gguf()
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model\.gguf: tensor 'token_embd.weight'.*truncat"):
        GGUFFile(path)


def patched(path: Path, place: int, new: bytes) -> Path:
    """Overwrite bytes of a file."""
    content = path.read_bytes()
    path.write_bytes(content[:place] + new + content[place + len(new) :])
    return path


@pytest.mark.parametrize(
    ("place", "new", "message"),
    [
        (0, b"GGML", "not a GGUF file"),
        (4, struct.pack("<I", 1), "GGUF version 1 is not supported"),
        (4, struct.pack(">I", 3), "version 50331648 is not supported"),
        (8, struct.pack("<Q", 10**15), "goes beyond the end|not known|dimensions"),
        (16, struct.pack("<Q", 10**15), "goes beyond the end|not known"),
        (24, struct.pack("<Q", 2**63), "metadata entry 0 goes beyond the end"),
    ],
)
def test_a_damaged_header_is_refused_with_what_is_wrong(
    make_gguf: GgufMaker, place: int, new: bytes, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        GGUFFile(patched(make_gguf(), place, new))


def test_an_unknown_tensor_type_and_a_ragged_row_name_the_tensor(make_gguf: GgufMaker) -> None:
    path = make_gguf()
    entry = path.read_bytes().index(b"token_embd.weight") + len("token_embd.weight")
    kind = entry + 4 + 2 * 8
    with pytest.raises(
        CheckpointError, match=r"'token_embd.weight' is of GGML type 99.*llama-quantize"
    ):
        GGUFFile(patched(path, kind, struct.pack("<I", 99)))
    with pytest.raises(
        CheckpointError, match=r"'token_embd.weight' has rows of 64.*q6_k stores 256"
    ):
        GGUFFile(patched(path, kind, struct.pack("<I", 14)))


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none\.gguf: No such file"):
        GGUFFile(tmp_path / "none.gguf")
