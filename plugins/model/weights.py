"""Filling a model's weights from a checkpoint, or at random."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch

from camshaft.contracts.quant import LinearSpec

from .names import IGNORED, rotary_rows, weight_names
from .rope import rotated_width

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from camshaft.checkpoint import Checkpoint
    from camshaft.contracts.model import ModelParts
    from camshaft.contracts.quant import LinearMethod, Role

_SINK_SPREAD = 1.0


class Weights:
    """Hands out finished weights by our names and counts their bytes.

    Random weights are drawn from a generator of their own for each name, so that a stage of a
    pipeline gets what the whole model would.

    Attributes:
        resident_bytes: Of everything handed out so far.
        touched: Weights that one token is multiplied with, of everything handed out so far.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        parts: ModelParts,
        names: Mapping[str, str] | None = None,
        ignored: Sequence[str] = IGNORED,
    ) -> None:
        """Hand out nothing yet.

        Args:
            checkpoint: To read from.
            parts: What to build with.
            names: Ours to those in the files; those of decoders by default.
            ignored: Patterns of names that nobody is warned of.
        """
        self.resident_bytes = 0
        self.touched = 0
        self._checkpoint = checkpoint
        self._config = checkpoint.config
        self._parts = parts
        self._dtype: torch.dtype = getattr(torch, parts.dtype)
        self._names = weight_names(checkpoint.config, checkpoint.layout) if names is None else names
        self._ignored = ignored

    def vector(self, name: str, size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a norm's weight or bias, or a layer's sinks: [size], by default as activations."""
        wanted = self._dtype if dtype is None else dtype
        if self._checkpoint.tensors is None:
            values = torch.ones(size, device=self._parts.device)
            if name.endswith(".bias"):
                values.zero_()
            if name.endswith("sinks.weight"):
                values.normal_(0, _SINK_SPREAD, generator=self._generator(name))
        else:
            values = self._checkpoint.tensor(self._names[name], (size,)).dequantize()
        values = values.to(self._parts.device, wanted, copy=True)
        self.resident_bytes += values.nbytes
        self.touched += size
        return values

    def linear(
        self,
        name: str,
        parts: Sequence[tuple[str, int]],
        inputs: int,
        *,
        bias: bool = False,
        role: Role = "linear",
    ) -> LinearMethod:
        """Return a finished linear.

        Args:
            name: Where it stands.
            parts: Our name, without `.weight`, and the output rows of each part.
            inputs: K.
            bias: All parts have biases.
            role: See `LinearSpec`.
        """
        rows = tuple(count for _, count in parts)
        built = self._parts
        method = built.quantizer.linear(
            LinearSpec(
                name,
                inputs,
                rows,
                bias=bias,
                role=role,
                dtype=built.dtype,
                device=built.device,
                deterministic=built.deterministic,
            )
        )
        if self._checkpoint.tensors is None:
            method.randomize(self._generator(name), inputs**-0.5)
        else:
            self._load(method, parts, inputs, bias)
        method.finish()
        self.resident_bytes += method.resident_bytes()
        if role != "embedding":
            self.touched += sum(rows) * (inputs + bias)
        return method

    def warn_of_unused(self) -> None:
        """Give one warning for tensors of the checkpoint that this model knows nothing of."""
        tensors = self._checkpoint.tensors or {}
        known = set(self._names.values())
        ignored = {
            name for name in tensors if any(re.fullmatch(one, name) for one in self._ignored)
        }
        self._checkpoint.warn_of_unused(known | ignored)

    def _load(
        self, method: LinearMethod, parts: Sequence[tuple[str, int]], inputs: int, bias: bool
    ) -> None:
        for part, (name, count) in enumerate(parts):
            order = self._order(name)
            weight = self._checkpoint.tensor(self._names[f"{name}.weight"], (count, inputs))
            method.load(part, weight, order)
            if bias:
                vector = self._checkpoint.tensor(self._names[f"{name}.bias"], (count,))
                method.load_bias(part, vector, order)

    def _order(self, name: str) -> torch.Tensor | None:
        """Return the order in which a part's rows stand in the file, where it is not ours."""
        config, kind = self._config, name.rpartition(".")[2]
        if self._checkpoint.layout != "gguf" or config.architecture != "llama":
            return None
        if kind not in ("q", "k"):
            return None
        heads = config.heads if kind == "q" else config.kv_heads
        return rotary_rows(heads, config.head_dim, rotated_width(config))

    def _generator(self, name: str) -> torch.Generator:
        seed = f"{self._checkpoint.random_seed or 0}:{name}"
        digest = blake2b(seed.encode(), digest_size=8).digest()
        device = self._parts.device  # drawing 8 billion numbers takes a host a minute
        return torch.Generator(device).manual_seed(int.from_bytes(digest, "little") >> 1)
