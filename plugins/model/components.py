"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class DecoderSettings(Settings):
    """Settings of the model `decoder`: none, a model's configuration says it all."""


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
        )
    ]
