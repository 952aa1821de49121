"""Models of the Hugging Face hub: from its cache on this machine, or fetched into it.

What is in the cache is taken as it is, without asking the hub for something newer, so that an
engine starts the same with a network and without.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from camshaft.errors import CheckpointError

from .safetensors import INDEX_NAME

FILES = (
    *("config.json", "generation_config.json", "*.safetensors", INDEX_NAME),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "*.jinja"),
    "1_Pooling/config.json",
)
"""What is fetched. Weights of other formats are left there: they are not read, or run code."""

UNREAD = ("consolidated*", "*/*.safetensors")
"""The same weights once more, for the authors' own programs."""

_REFERENCE = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")
_BY_HAND = (
    "Fetch it on a machine with a network (`hf download {name}`) and give its folder, or point "
    "HF_HOME to a cache that has it; `package:NAME` takes a model from an installed distribution."
)


def find_on_hub(reference: str) -> Path:
    """Return the folder of a model in the cache of the hub, fetched if need be.

    Args:
        reference: `org/name`, or `org/name@revision` for a branch, a tag or a commit.

    Raises:
        CheckpointError: It is no such reference, or the model is neither here nor to be had.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise CheckpointError(
            f"hf:{reference}: a model of the hub is hf:ORG/NAME or hf:ORG/NAME@REVISION."
        )
    # a fifth of a second to import, which no other source has to pay
    try:
        import huggingface_hub
    except ImportError:
        raise CheckpointError(
            f"hf:{reference}: huggingface_hub is not installed. Run `pip install huggingface_hub`, "
            "or fetch the model by hand and give its folder."
        ) from None
    name, revision = match["name"], match["revision"]
    here = _cached(huggingface_hub, name, revision)
    return _fetched(huggingface_hub, name, revision) if here is None else here


def _cached(hub: Any, name: str, revision: str | None) -> Path | None:  # noqa: ANN401 - a module
    """Return the folder of a model that is here as a whole, or None."""
    try:
        folder = hub.snapshot_download(
            name,
            revision=revision,
            local_files_only=True,
            allow_patterns=[*FILES],
            ignore_patterns=[*UNREAD],
        )
    except OSError:
        return None
    return Path(folder) if _is_whole(Path(folder)) else None


def _is_whole(folder: Path) -> bool:
    """Return whether a download got to its end; older caches do not say."""
    index = folder / INDEX_NAME
    if not (folder / "config.json").exists():
        return False
    if not index.exists():
        return any(folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # damaged, which the reader of weights says better
    return all((folder / str(shard)).exists() for shard in shards)


def _fetched(hub: Any, name: str, revision: str | None) -> Path:  # noqa: ANN401
    from huggingface_hub import constants, errors

    where = f"hf:{name}" if revision is None else f"hf:{name}@{revision}"
    try:
        folder = hub.snapshot_download(
            name, revision=revision, allow_patterns=[*FILES], ignore_patterns=[*UNREAD]
        )
    except errors.RevisionNotFoundError:
        raise CheckpointError(f"{where}: the repository has no revision '{revision}'.") from None
    except errors.GatedRepoError:
        raise CheckpointError(
            f"{where}: its authors ask to accept terms first. Do so on its page, then log in with "
            "`hf auth login` or set HF_TOKEN."
        ) from None
    except errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"{where}: the hub has no such repository, or not for you. Look at the name; for a "
            "private one log in with `hf auth login` or set HF_TOKEN."
        ) from None
    except Exception as error:  # noqa: BLE001
        # the library has several for a network that is not there, and its transport has others
        cures = _BY_HAND.format(name=name)
        raise CheckpointError(
            f"{where}: it is not in the cache {constants.HF_HUB_CACHE}, and fetching it failed "
            f"({_cause(error)}). {cures}"
        ) from None
    if not _is_whole(Path(folder)):
        raise CheckpointError(
            f"{where}: {folder} lacks config.json or safetensors files: the download was cut, or "
            f"the repository has none. {_BY_HAND.format(name=name)}"
        )
    return Path(folder)


def _cause(error: BaseException) -> str:
    """Return the first line of what stopped a download."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
