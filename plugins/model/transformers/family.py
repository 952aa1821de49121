"""Causal language models of the transformers library, served with our attention and pages.

Their code runs as it is; only attention is ours, by the library's attention interface. Tokens of
all requests stand side by side in one row, and the library keeps no cache. Linears are the
library's too, so weights are plain and fused operations are not used: a family of its own, such as
`decoder`, is faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.contracts.attention import AttentionSpec
from camshaft.contracts.model import GroupPlan, Model, ModelFamily
from camshaft.errors import PluginError

from .examination import checked, examine, kinds, members
from .stack import LibraryModel
from .weights import filled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from camshaft.checkpoint import Checkpoint, ModelConfig
    from camshaft.component import Settings
    from camshaft.contracts.model import ModelParts


class TransformersFamily(ModelFamily):
    """What the library's attention interface lets us attend for; the rest is refused by name."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @staticmethod
    def supports(config: ModelConfig) -> list[str]:
        """See `ModelFamily.supports`."""
        return list(examine(config).faults)

    def conflicts(self, quantizer: str, *, deterministic: bool) -> list[str]:
        """See `ModelFamily.conflicts`."""
        reasons = []
        if quantizer != "none":
            reasons.append(
                f"'transformers' has linears of its own, which quant '{quantizer}' cannot hold; "
                "say `quant: none`"
            )
        if deterministic:
            reasons.append(
                "the last bits of the linears of 'transformers' depend on the batch; say "
                "`engine: {deterministic: false}`"
            )
        return reasons

    def groups(self, config: ModelConfig, page_tokens: int, dtype: str) -> Sequence[GroupPlan]:
        """See `ModelFamily.groups`. One for each kind of layer, by heads, window and cap."""
        layers = checked(config, config.architecture).layers
        return [
            GroupPlan(
                tuple(members(layers, kind)),
                AttentionSpec(
                    heads=kind.heads,
                    kv_heads=kind.kv_heads,
                    head_dim=kind.head_dim,
                    value_dim=kind.value_dim,
                    dtype=dtype,
                    page_tokens=page_tokens,
                    window=kind.window,
                    sinks=kind.sinks,
                    soft_cap=kind.soft_cap,
                    max_context=config.context,
                ),
            )
            for kind in kinds(layers)
        ]

    def names(self, config: ModelConfig, layout: str) -> Mapping[str, str]:
        """See `ModelFamily.names`. The library's own, but where it joins tensors of a file."""
        return {name: name for name in checked(config, config.architecture).weights}

    def build(self, checkpoint: Checkpoint, parts: ModelParts) -> Model:
        """See `ModelFamily.build`."""
        found = checked(checkpoint.config, checkpoint.source)
        if parts.ranks != 1 or parts.layers != (0, checkpoint.config.layers):
            raise PluginError("model 'transformers' runs on one rank, all layers together.")
        return LibraryModel(filled(checkpoint, parts), found.layers, checkpoint, parts)
