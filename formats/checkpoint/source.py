"""Opening a model from wherever a recipe says that it is."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from camshaft.errors import CheckpointError, did_you_mean

from .gguf import GGUFFile
from .gguf_config import read_gguf_config
from .hf_config import read_hf_config
from .hub import find_on_hub
from .packages import find_in_package
from .safetensors import read_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from .config import ModelConfig
    from .tensor import CheckpointTensor

_log = logging.getLogger(__name__)

_COUNTED = re.compile(r"(.*\.)?position_ids")
"""Tensors of older files that hold 0, 1, 2 and so on, as integers."""


@dataclass(frozen=True, slots=True)
class TextSource:
    """What a tokenizer and a chat template are built from; see `camshaft.text.load_text`.

    Attributes:
        kind: `files`: a folder with `tokenizer.json`; `gguf`: metadata of a GGUF file; `bytes`: a
            model without a tokenizer, whose tokens are bytes.
        where: The folder or file, for messages.
        metadata: Of the GGUF file, else empty.
    """

    kind: Literal["files", "gguf", "bytes"]
    where: Path
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk, or the shape of one with random weights.

    Attributes:
        source: As the recipe named it.
        config: What the model is.
        layout: How tensors are named and laid out: `hf`, or `gguf` (whose `llama` keeps rows of
            query and key projections in pairs that rotate together).
        tensors: By their names in the files, or None for random weights.
        files: Weight files.
        text: What the tokenizer is to be built from.
        random_seed: Seed of random weights, else None.
    """

    source: str
    config: ModelConfig
    layout: Literal["hf", "gguf"]
    tensors: Mapping[str, CheckpointTensor] | None = field(repr=False)
    files: tuple[Path, ...]
    text: TextSource
    random_seed: int | None = None

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> CheckpointTensor:
        """Return a tensor that must be there.

        Args:
            name: Its name in the files.
            shape: What the configuration makes it, outermost first; None does not check.

        Raises:
            CheckpointError: It is missing or of another shape; names file, tensor and shapes.
        """
        tensors = self.tensors or {}
        found = tensors.get(name)
        if found is None:
            where = ", ".join(str(file) for file in self.files) or self.source
            raise CheckpointError(
                f"{where}: tensor '{name}' is missing{did_you_mean(name, tensors)}."
            )
        if shape is not None and found.shape != shape:
            raise CheckpointError(
                f"{found.file}: tensor '{name}' is {list(found.shape)}; the configuration makes "
                f"it {list(shape)}."
            )
        return found

    def refusals(self, supports: Callable[[Sequence[str]], Sequence[str]]) -> list[str]:
        """Return why a quantizer does not serve these tensors, each reason with an example.

        Args:
            supports: From formats to reasons; `Quantizer.supports`, but for dtype and device. A
                reason that goes away without a format is about the tensors of that format.
        """
        stored: dict[str, list[str]] = {}
        for name, tensor in (self.tensors or {}).items():
            stored.setdefault(tensor.format, []).append(name)
        formats = sorted(stored)
        rest = {one: supports([other for other in formats if other != one]) for one in formats}
        reasons = []
        for reason in supports(formats):
            about = [one for one in formats if reason not in rest[one]]
            names = stored[about[0]] if len(about) == 1 else []
            others = f" and {len(names) - 1} more" if len(names) > 1 else ""
            reasons.append(f"{reason} (tensor '{names[0]}'{others})" if names else reason)
        return reasons

    def warn_of_unused(self, used: Collection[str]) -> list[str]:
        """Log and return the tensors that nothing used, in order."""
        unused = sorted(set(self.tensors or ()).difference(used))
        if unused:
            _log.warning("%s: nothing uses %s.", self.source, ", ".join(unused))
        return unused


def open_checkpoint(source: str, *, seed: int = 0) -> Checkpoint:
    """Open a model without loading its weights.

    Args:
        source: A folder with `config.json` and safetensors files; a `.gguf` file; `package:NAME`
            for one of these in an installed distribution, which is not imported;
            `hf:ORG/NAME[@REVISION]` for a folder of the Hugging Face hub, fetched if not here yet;
            `config:PATH` (a `config.json` or its folder) for random weights.
        seed: Of random weights.

    Raises:
        CheckpointError: Nothing is there, or it is damaged or not supported.
    """
    scheme, _, rest = source.partition(":")
    if scheme == "config":
        path = Path(rest).expanduser()
        path = path / "config.json" if path.is_dir() else path
        return random_checkpoint(_read_json(path), seed, where=path)
    finders = {"package": find_in_package, "hf": find_on_hub}
    path = finders[scheme](rest) if scheme in finders else Path(source).expanduser()
    if path.is_dir():
        return _open_folder(source, path)
    if path.suffix == ".gguf" and path.is_file():
        return _open_gguf(source, path)
    what = "neither a folder nor a .gguf file" if path.exists() else "there is no such path"
    raise CheckpointError(f"{source}: {what}.")


def random_checkpoint(
    config: Mapping[str, Any], seed: int = 0, *, where: Path | None = None
) -> Checkpoint:
    """Describe a model whose weights are drawn at random.

    Args:
        config: What `config.json` would hold.
        seed: Of the weights.
        where: The file it came from. A `tokenizer.json` beside it is used, else tokens are bytes.
    """
    origin = where or Path("config")
    has_tokenizer = where is not None and (where.parent / "tokenizer.json").exists()
    text = TextSource("files", origin.parent) if has_tokenizer else TextSource("bytes", origin)
    return Checkpoint(
        source=f"config:{origin}",
        config=read_hf_config(config, str(origin)),
        layout="hf",
        tensors=None,
        files=(),
        text=text,
        random_seed=seed,
    )


def _open_folder(source: str, folder: Path) -> Checkpoint:
    path, generation = folder / "config.json", folder / "generation_config.json"
    config = read_hf_config(
        _read_json(path),
        str(path),
        _read_json(generation) if generation.exists() else None,
        str(generation),
    )
    found, files = read_folder(folder)
    tensors = {name: one for name, one in found.items() if not _COUNTED.fullmatch(name)}
    text = TextSource("files", folder)
    return Checkpoint(source, config, "hf", MappingProxyType(tensors), files, text)


def _open_gguf(source: str, path: Path) -> Checkpoint:
    file = GGUFFile(path)
    parts = file.metadata.get("split.count", 0)
    if parts not in (0, 1):
        raise CheckpointError(
            f"{path}: one of {parts} parts. Join them with llama.cpp's `llama-gguf-split --merge`."
        )
    return Checkpoint(
        source=source,
        config=read_gguf_config(file),
        layout="gguf",
        tensors=MappingProxyType(file.tensors),
        files=(path,),
        text=TextSource("gguf", path, file.metadata),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}. Fetch the file again.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no JSON object. Fetch the file again.")
    return content
