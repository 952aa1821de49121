"""Safetensors files, one or sharded, whose tensors stay on disk.

Source: the format description of the safetensors project. A file is the header's length (8 bytes,
little-endian), the header (JSON), and the data. It is read here rather than through the library
because that one needs torch to hand out bfloat16, and copies for anything else.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import CheckpointError

from .formats import SAFETENSORS_FORMATS
from .mapped import map_file
from .tensor import CheckpointTensor

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INDEX_NAME = "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000

_log = logging.getLogger(__name__)


def read_safetensors(path: Path) -> dict[str, CheckpointTensor]:
    """Map one file.

    Raises:
        CheckpointError: Missing, damaged or truncated; names the file, and the tensor if there is.
    """
    buffer = map_file(path)
    header_bytes = int.from_bytes(buffer[:8], "little")
    if len(buffer) < 8 or header_bytes > min(len(buffer) - 8, _MOST_HEADER_BYTES):
        raise CheckpointError(
            f"{path}: no safetensors file, or a truncated one ({len(buffer)} bytes). "
            "Fetch it again."
        )
    try:
        header = json.loads(buffer[8 : 8 + header_bytes])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header is no JSON object. Fetch the file again.")
    header.pop("__metadata__", None)
    data = np.frombuffer(buffer, np.uint8)[8 + header_bytes :]
    return {name: _tensor(name, entry, data, path) for name, entry in header.items()}


def read_folder(folder: Path) -> tuple[dict[str, CheckpointTensor], tuple[Path, ...]]:
    """Map the weights of a model folder and return them with the files they come from.

    With an index, each tensor is taken from the shard that the index names.

    Raises:
        CheckpointError: No weights, a shard is missing, or index and shards disagree.
    """
    index = folder / INDEX_NAME
    if index.exists():
        return _read_shards(index)
    files = sorted(folder.glob("*.safetensors"))
    single = folder / "model.safetensors"
    if single in files:
        files = [single]
    if len(files) == 1:
        return read_safetensors(files[0]), (files[0],)
    if files:
        raise CheckpointError(
            f"{folder}: {len(files)} safetensors files but no {INDEX_NAME}, which would say what "
            "belongs together."
        )
    pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
    hint = (
        f" {pickled[0].name} is pickled and is not read: a pickle may run any code. Convert it."
        if pickled
        else ""
    )
    raise CheckpointError(f"{folder}: no *.safetensors file.{hint}")


def _read_shards(index: Path) -> tuple[dict[str, CheckpointTensor], tuple[Path, ...]]:
    placed = _weight_map(index)
    shards = {}
    for file in sorted(set(placed.values())):
        path = index.parent / file
        if not path.is_file():
            first = next(name for name, shard in placed.items() if shard == file)
            raise CheckpointError(
                f"{path}: the shard is missing; {index.name} expects '{first}' and others in it. "
                "Fetch it into this folder."
            )
        shards[file] = read_safetensors(path)
    tensors = {}
    for name, file in placed.items():
        if name not in shards[file]:
            raise CheckpointError(_misplaced(name, file, shards, index))
        tensors[name] = shards[file][name]
    unlisted = sorted({name for shard in shards.values() for name in shard} - placed.keys())
    if unlisted:
        _log.warning("%s does not list %s; ignored.", index, ", ".join(unlisted))
    return tensors, tuple(index.parent / file for file in shards)


def _misplaced(
    name: str, file: str, shards: Mapping[str, Mapping[str, CheckpointTensor]], index: Path
) -> str:
    others = [other for other, tensors in shards.items() if name in tensors]
    where = f"it is in {others[0]}" if others else "no shard has it"
    return (
        f"{index.parent / file}: tensor '{name}' is missing; {index.name} says so, but {where}. "
        "Fetch both again, in one version."
    )


def _weight_map(index: Path) -> dict[str, str]:
    try:
        content = json.loads(index.read_bytes())
        placed = content["weight_map"]
        names = [(str(name), str(file)) for name, file in placed.items()]
    except OSError as error:
        raise CheckpointError(f"{index}: {error.strerror}.") from None
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{index}: no JSON object with a weight_map. Fetch it again."
        ) from None
    for name, file in names:
        if "/" in file or "\\" in file:
            raise CheckpointError(f"{index}: '{name}' is placed outside the folder, in {file}.")
    return dict(names)


def _tensor(name: str, entry: Any, data: np.ndarray[Any, Any], path: Path) -> CheckpointTensor:  # noqa: ANN401 - JSON of the file
    try:
        word, shape = entry["dtype"], tuple(int(size) for size in entry["shape"])
        start, stop = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CheckpointError(
            f"{path}: tensor '{name}' has a damaged header entry. Fetch the file again."
        ) from None
    format = SAFETENSORS_FORMATS.get(str(word))
    if format is None:
        raise CheckpointError(
            f"{path}: tensor '{name}' is of dtype {word}, which is not known. Convert the model to "
            "bfloat16."
        )
    if min(shape, default=0) < 0 or not 0 <= start <= stop or stop - start != format.nbytes(shape):
        raise CheckpointError(
            f"{path}: tensor '{name}' {word} {list(shape)} does not fit bytes {start}:{stop}: "
            "the file is damaged. Fetch it again."
        )
    if stop > data.size:
        raise CheckpointError(
            f"{path}: tensor '{name}' ends at data byte {stop}, but there are {data.size}: the "
            "file is truncated. Fetch it again."
        )
    return CheckpointTensor(name, shape, format.name, data[start:stop], path)
