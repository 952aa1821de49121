"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from typing import Literal

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class DecoderSettings(Settings):
    """Settings of the model `decoder`; a model's configuration says the rest."""

    residual: Literal["model", "float32"] = "model"
    """Precision of the sum that runs through all layers, `model` being that of `model.dtype`.
    `float32` spares two roundings a layer, for 8 more bytes a layer, token and hidden element."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="model",
            name="decoder",
            implementation="camshaft.plugins.model.decoder:DecoderFamily",
            settings=DecoderSettings,
            summary="dense decoders: Llama, SmolLM, Mistral, Qwen2, Qwen3 and mixtures of these",
        ),
        Component(
            kind="model",
            name="encoder",
            implementation="camshaft.plugins.model.encoder:EncoderFamily",
            summary="encoders of the BERT family, which make vectors of texts",
        ),
        Component(
            kind="model",
            name="transformers",
            implementation="camshaft.plugins.model.transformers.family:TransformersFamily",
            summary="other causal language models, run by the transformers library's code",
        ),
    ]
