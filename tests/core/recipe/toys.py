"""Small components that do nothing, offered as an unpackaged plugin."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from camshaft import Chosen, Component, Settings, Uses, hookimpl

DOUBLE = f"{__name__}:Double"


class HasEveryMethod(type):
    """Gives a class whatever a contract may ask for."""

    def __getattr__(cls, name: str) -> object:
        return lambda *args, **kwargs: None


class Double(metaclass=HasEveryMethod):
    """Stands for an implementation of any kind."""


class Sdpa(Settings):
    """Settings of attention `sdpa`."""

    split: PositiveInt = 1
    """Parts of a long context."""


class Paged(Settings):
    """Settings of cache `paged`."""

    sharing: Literal["strict", "loose"] = "loose"


class Tiered(Settings):
    """Settings of a cache over another."""

    over: Annotated[Chosen, Uses("cache")]
    share: float = Field(default=0.5, gt=0, le=1)


class Chunked(Settings):
    """Settings of scheduler `chunked`."""

    chunk_tokens: PositiveInt = 256


class Slo(Settings):
    """Settings of scheduler `slo`, with a mapping inside."""

    class Weights(BaseModel):
        model_config = ConfigDict(extra="forbid")
        ttft: float = 1.0
        tpot: float = 1.0

    victim: str = "newest"
    weights: Weights = Weights()


@hookimpl
def camshaft_components() -> list[Component]:
    return [
        Component("hardware", "cpu", DOUBLE),
        Component("model", "decoder", DOUBLE),
        Component("attention", "sdpa", DOUBLE, Sdpa),
        Component("attention", "triton", DOUBLE),
        Component("cache", "paged", DOUBLE, Paged),
        Component("cache", "tiered", DOUBLE, Tiered),
        Component("eviction", "lru", DOUBLE),
        Component("eviction", "slru", DOUBLE),
        Component("scheduler", "chunked", DOUBLE, Chunked),
        Component("scheduler", "slo", DOUBLE, Slo),
        Component("scheduler", "absent", "a_module_that_nobody_has:Absent"),
        Component("quant", "none", DOUBLE),
        Component("kv_quant", "none", DOUBLE),
        Component("sampling", "standard", DOUBLE),
        Component("processor", "bias", DOUBLE),
        Component("processor", "penalty", DOUBLE),
        Component("observer", "printer", DOUBLE),
    ]
