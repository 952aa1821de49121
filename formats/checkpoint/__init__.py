"""Weights and configurations on disk, read without loading them all."""

from __future__ import annotations

from .config import GenerationDefaults, LayerType, ModelConfig, Rope, RopeKind
from .gguf import GGUFFile
from .source import Checkpoint, TextSource, open_checkpoint, random_checkpoint
from .tensor import CheckpointTensor

__all__ = [
    "Checkpoint",
    "CheckpointTensor",
    "GGUFFile",
    "GenerationDefaults",
    "LayerType",
    "ModelConfig",
    "Rope",
    "RopeKind",
    "TextSource",
    "open_checkpoint",
    "random_checkpoint",
]
