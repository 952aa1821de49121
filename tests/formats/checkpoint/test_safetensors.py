"""Safetensors: one file or shards, and every way in which they may not fit together."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from camshaft.checkpoint import open_checkpoint
from camshaft.checkpoint.safetensors import read_safetensors
from camshaft.errors import CheckpointError

from .conftest import FolderMaker

SHARDS = {
    "model-00001-of-00002.safetensors": {"a": (2, 3), "b": (4,)},
    "model-00002-of-00002.safetensors": {"c": (3, 3)},
}
SECOND = "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def move_in_index(folder: Path, name: str, file: str) -> None:
    """Let the index place a tensor elsewhere."""
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"][name] = file
    (folder / INDEX).write_text(json.dumps(index))


def test_every_dtype_reads_as_the_library_reads_it(tmp_path: Path) -> None:
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    path = tmp_path / "m.safetensors"
    save_file({str(dtype): torch.randn(3, 5).to(dtype) for dtype in dtypes}, path)
    ours = read_safetensors(path)
    with safe_open(path, "pt") as library:
        for dtype in dtypes:
            expected = library.get_tensor(str(dtype))
            assert torch.equal(ours[str(dtype)].dequantize(dtype), expected)


def test_shards_are_joined_through_the_index(make_folder: FolderMaker) -> None:
    checkpoint = open_checkpoint(str(make_folder(SHARDS)))
    assert checkpoint.layout == "hf"
    assert sorted(checkpoint.tensors or ()) == ["a", "b", "c"]
    assert [file.name for file in checkpoint.files] == sorted(SHARDS)
    assert checkpoint.tensor("c", (3, 3)).file.name == SECOND
    assert checkpoint.tensor("a").dequantize().tolist() == [[1.5] * 3] * 2


def test_QNT_02a_a_missing_shard_is_named(make_folder: FolderMaker) -> None:
    folder = make_folder(SHARDS)
    (folder / SECOND).unlink()
    with pytest.raises(CheckpointError, match=rf"{SECOND}: the shard is missing.*'c'.*Fetch it"):
        open_checkpoint(str(folder))


def test_QNT_02b_a_tensor_missing_from_its_shard_is_named(make_folder: FolderMaker) -> None:
    folder = make_folder(SHARDS)
    move_in_index(folder, "d", SECOND)
    with pytest.raises(CheckpointError, match=rf"{SECOND}: tensor 'd' is missing.*no shard has it"):
        open_checkpoint(str(folder))


def test_QNT_02c_a_tensor_in_another_shard_than_stated_is_named(make_folder: FolderMaker) -> None:
    folder = make_folder(SHARDS)
    move_in_index(folder, "a", SECOND)
    with pytest.raises(
        CheckpointError, match=rf"{SECOND}: tensor 'a' is missing.*it is in model-00001"
    ):
        open_checkpoint(str(folder))


def test_QNT_02d_a_tensor_of_another_shape_is_named_with_both(make_folder: FolderMaker) -> None:
    checkpoint = open_checkpoint(str(make_folder({"model.safetensors": {"a": (2, 3)}})))
    with pytest.raises(CheckpointError, match=r"'a' is \[2, 3\]; the configuration.*\[3, 2\]"):
        checkpoint.tensor("a", (3, 2))
    with pytest.raises(
        CheckpointError, match=r"model.safetensors: tensor 'aa' is missing; did you"
    ):
        checkpoint.tensor("aa")


def test_QNT_02e_an_extra_tensor_is_only_a_warning(
    make_folder: FolderMaker, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = open_checkpoint(str(make_folder({"model.safetensors": {"a": (2,), "x": (2,)}})))
    with caplog.at_level(logging.WARNING):
        assert checkpoint.warn_of_unused({"a"}) == ["x"]
    assert "nothing uses x." in caplog.text


def test_a_tensor_that_the_index_does_not_list_is_left_out_with_a_warning(
    make_folder: FolderMaker, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_folder(SHARDS)
    save_file({"c": torch.zeros(3, 3), "z": torch.zeros(1)}, folder / SECOND)
    with caplog.at_level(logging.WARNING):
        assert sorted(open_checkpoint(str(folder)).tensors or ()) == ["a", "b", "c"]
    assert "does not list z" in caplog.text


@pytest.mark.parametrize("kept", [0, 5, 60])
def test_a_file_cut_in_its_header_is_refused(make_folder: FolderMaker, kept: int) -> None:
    folder = make_folder({"model.safetensors": {"a": (2, 3)}})
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: .*(empty|truncated)"):
        open_checkpoint(str(folder))


def test_a_file_cut_in_its_data_names_the_tensor(make_folder: FolderMaker) -> None:
    folder = make_folder({"model.safetensors": {"a": (2, 3)}})
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CheckpointError, match=r"tensor 'a' ends at data byte 24, but there are 20"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, r"F32 \[2\] does not fit"),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}, "does not fit"),
        ({"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}, "dtype Q9, which is not known"),
        ({"dtype": "F32", "shape": [1]}, "damaged header entry"),
        ([], "damaged header entry"),
    ],
)
def test_an_impossible_entry_names_the_tensor(tmp_path: Path, entry: object, message: str) -> None:
    header = json.dumps({"w": entry}).encode()
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointError, match=rf"m\.safetensors: tensor 'w'.*{message}"):
        read_safetensors(path)


def test_an_index_cannot_reach_outside_its_folder(make_folder: FolderMaker) -> None:
    folder = make_folder(SHARDS)
    move_in_index(folder, "a", "../secret.safetensors")
    with pytest.raises(CheckpointError, match="'a' is placed outside the folder"):
        open_checkpoint(str(folder))


def test_several_files_without_an_index_are_refused(make_folder: FolderMaker) -> None:
    folder = make_folder(SHARDS)
    (folder / INDEX).unlink()
    with pytest.raises(CheckpointError, match="2 safetensors files but no model.safetensors.index"):
        open_checkpoint(str(folder))


def test_pickled_weights_are_refused_with_the_reason(make_folder: FolderMaker) -> None:
    folder = make_folder({})
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is pickled and is not read"):
        open_checkpoint(str(folder))
