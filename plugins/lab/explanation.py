"""What `engine explain` prints: tables, or the same as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.checkpoint.config import ModelConfig
    from camshaft.compose.memory import MemoryPlan
    from camshaft.info import EngineInfo
    from camshaft.recipe import Recipe

    from .rates import Rates


@dataclass(frozen=True, slots=True)
class StepLimit:
    """The least time of a step.

    Attributes:
        requests: In it.
        tokens: Of each.
        context: Tokens that each has behind it.
        seconds: At least.
        memory_s: Of these, where bandwidth is what limits.
    """

    requests: int
    tokens: int
    context: int
    seconds: float
    memory_s: float

    def as_mapping(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "context": self.context,
            "least_ms": round(self.seconds * 1e3, 4),
            "most_tok_s": round(self.requests * self.tokens / self.seconds, 1),
            "bound": "memory" if 2 * self.memory_s >= self.seconds else "compute",
        }


@dataclass(frozen=True, slots=True)
class Explanation:
    """An engine, described.

    Attributes:
        recipe: It was composed from.
        info: As clients are told.
        memory: What it holds.
        config: Of the model.
        rates: Of the device; None where no model runs.
        steps: Their limits.
    """

    recipe: Recipe
    info: EngineInfo
    memory: MemoryPlan
    config: ModelConfig
    rates: Rates | None
    steps: Sequence[StepLimit]

    def as_mapping(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "recipe": self.recipe.name,
            "model": self.info.model,
            "device": self.info.device,
            "version": self.info.version,
            "components": self._components(),
            "values": {
                path: {"value": value, "origin": origin}
                for path, (value, origin) in self.recipe.describe().items()
                if origin != "default"
            },
            "architecture": {
                "name": self.config.architecture,
                "layers": self.config.layers,
                "hidden": self.config.hidden,
                "vocab": self.config.vocab,
                "dtype": self.recipe.model.dtype,
            },
            "memory": self._memory(),
            "rates": None
            if self.rates is None
            else {"bytes_s": self.rates.bytes_s, "gemm_flop_s": self.rates.gemm_flop_s},
            "steps": [one.as_mapping() for one in self.steps],
        }

    def _components(self) -> list[dict[str, str]]:
        return [
            {
                "path": path,
                "use": chosen.name,
                "from": f"{chosen.component.distribution} {chosen.component.version}",
                "origin": self.recipe.origins.get(f"{path}.use")
                or self.recipe.origins.get(path, "default"),
            }
            for path, chosen in self.recipe.chosen()
        ]

    def _memory(self) -> dict[str, Any]:
        plan = self.memory
        return {
            "weight_bytes": plan.weight_bytes,
            "cache_bytes": plan.cache_bytes,
            "token_bytes": sum(plan.group_page_bytes) / plan.page_tokens,
            "page_tokens": plan.page_tokens,
            "pages": plan.pages,
            "pool_tokens": plan.pool_tokens,
            "room": plan.room,
            "whole_requests": plan.pool_tokens // plan.room,
            "max_running": self.recipe.scheduler.max_running,
        }


def table(found: Explanation) -> str:
    """Return an explanation for people."""
    data = found.as_mapping()
    parts = [f"{data['recipe']}: {data['model']} on {data['device']}"]
    rows = [(one["path"], one["use"], one["from"], one["origin"]) for one in data["components"]]
    parts.append(_columns("component", rows))
    values = [(path, repr(one["value"]), one["origin"]) for path, one in data["values"].items()]
    parts.append(
        _columns("what the recipe says (`engine check --show` lists defaults too)", values)
    )
    parts.append(_memory_lines(data["architecture"], data["memory"]))
    if data["rates"] is not None:
        parts.append(_limit_lines(data["rates"], data["steps"]))
    return "\n\n".join(parts)


def _memory_lines(model: dict[str, Any], memory: dict[str, Any]) -> str:
    whole = memory["whole_requests"]
    return "\n".join(
        (
            "memory",
            f"  weights: {_size(memory['weight_bytes'])}, {model['layers']} layers of "
            f"{model['hidden']} in {model['dtype']} where they are not quantised",
            f"  keys and values: {memory['token_bytes']:g} bytes a token, "
            f"{memory['pages']} pages of {memory['page_tokens']} tokens in "
            f"{_size(memory['cache_bytes'])}",
            f"  they hold {memory['pool_tokens']} tokens: {whole} of the longest "
            f"requests, {memory['room']} tokens, at once; {memory['max_running']} may run",
        )
    )


def _limit_lines(rates: dict[str, float], steps: Sequence[dict[str, Any]]) -> str:
    rows = [("step", "least ms", "most tok/s", "bound by")]
    for one in steps:
        many = f"{one['requests']} requests decode" if one["requests"] > 1 else "1 request decodes"
        what = f"{many}, {one['context']} tokens behind each"
        if one["tokens"] > 1:
            what = f"{one['tokens']} tokens of a prompt"
        rows.append((what, f"{one['least_ms']:.3f}", f"{one['most_tok_s']:.0f}", one["bound"]))
    title = (
        f"the least time of a step at {rates['bytes_s'] / 1e9:.1f} GB/s and "
        f"{rates['gemm_flop_s'] / 1e12:.2f} Tflop/s"
    )
    return _columns(title, rows)


def _columns(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"
