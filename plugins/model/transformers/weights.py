"""Filling a model of the library: from our reader of checkpoints, or at random.

The library knows which of its parameters are tied and which are several tensors of the file in one
(experts), so it takes the tensors from us by their names and says what was missing. It would make
that up; here it is an error.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from camshaft.errors import CheckpointError, did_you_mean

from .interface import NAME, built, causal_model, library_config, prepared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from camshaft.checkpoint import Checkpoint, CheckpointTensor
    from camshaft.contracts.model import ModelParts

_STORED = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def filled(checkpoint: Checkpoint, parts: ModelParts) -> torch.nn.Module:
    """Return the library's model with its weights, on the device of the parts.

    Raises:
        CheckpointError: A tensor is missing or misshapen; names file and tensor.
    """
    with _quiet():
        if checkpoint.tensors is None:
            module = _drawn(checkpoint, parts)
        else:
            module = _loaded(checkpoint, parts)
    return module.to(parts.device)


def _drawn(checkpoint: Checkpoint, parts: ModelParts) -> torch.nn.Module:
    """Draw weights as the library does, from a seed, wherever the parts are to be."""
    library = library_config(checkpoint.config.stated or {})
    device = torch.device(parts.device)
    dtype: torch.dtype = getattr(torch, parts.dtype)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(checkpoint.random_seed or 0)
        module: torch.nn.Module = built(library, dtype)
    return module


def _loaded(checkpoint: Checkpoint, parts: ModelParts) -> torch.nn.Module:
    library = library_config(checkpoint.config.stated or {})
    tensors = checkpoint.tensors or {}
    module, report = causal_model(library).from_pretrained(
        None,
        config=library,
        state_dict={name: _values(tensor) for name, tensor in tensors.items()},
        dtype=getattr(torch, parts.dtype),
        attn_implementation=NAME,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported below in our words
    )
    _refuse(checkpoint, report)
    checkpoint.warn_of_unused(set(tensors) - set(report["unexpected_keys"]))
    ready: torch.nn.Module = prepared(module)
    return ready


def _values(tensor: CheckpointTensor) -> torch.Tensor:
    """Return the values as they are stored, sharing the mapped bytes where torch has the format."""
    return tensor.dequantize(_STORED.get(tensor.format))


def _refuse(checkpoint: Checkpoint, report: dict[str, Any]) -> None:
    where = ", ".join(str(file) for file in checkpoint.files) or checkpoint.source
    for name, stored, wanted in sorted(report["mismatched_keys"]):
        raise CheckpointError(
            f"{where}: tensor '{name}' is {list(stored)}; the configuration makes it "
            f"{list(wanted)}."
        )
    for name in sorted(report["missing_keys"]):
        hint = did_you_mean(name, checkpoint.tensors or {})
        raise CheckpointError(f"{where}: tensor '{name}' is missing{hint}.")
    for fault in report.get("error_msgs") or ():
        raise CheckpointError(f"{where}: {fault}.")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's bars and reports off the terminal: what matters is an error of ours."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
