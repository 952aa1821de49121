"""The sections of a recipe: fields that hold for every component of a kind, and the chosen ones.

A field of a section is honoured whatever component the section uses; a component's own fields stand
beside it in the YAML and are validated by the component's settings.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FilePath, NonNegativeInt, PositiveInt, model_validator

from ..component import Chosen, Settings, Uses
from ..sizes import Bytes


class Section(Settings):
    """A part of a recipe."""


class ModelSection(Section):
    """Which weights, in which precision, for how long a context."""

    use: Annotated[Chosen | Literal["auto"], Uses("model")] = "auto"
    """The model component; `auto` takes the one that says it runs this architecture."""
    source: str | None = None
    """A folder with config.json, a .gguf file, `package:NAME` for files of an installed
    distribution, `hf:ORG/NAME` or `hf:ORG/NAME@REVISION` for a model of the Hugging Face hub, or
    `config:PATH` for the shape alone, with random weights. Paths are relative to the recipe."""
    config: dict[str, Any] | None = None
    """The shape of a model with random weights, as config.json would state it."""
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    """Precision of activations and of weights that are not quantised."""
    max_context: PositiveInt | Literal["auto"] = "auto"
    """Most tokens of prompt and output together; `auto` takes the model's own limit."""
    name: str = ""
    """What the server calls it; empty takes the last part of the source."""
    seed: NonNegativeInt = 0
    """Seed of random weights."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.source is None) == (self.config is None):
            raise ValueError("give either `source` or `config`")
        if "seed" in self.model_fields_set and not self.is_random:
            raise ValueError("`seed` is for random weights and has no effect on this source")
        return self

    @property
    def is_random(self) -> bool:
        """Whether the weights are drawn, not read."""
        return self.config is not None or (self.source or "").startswith("config:")

    @property
    def served_name(self) -> str:
        """What the server calls the model."""
        if self.name or self.source is None:
            return self.name or "random"
        last = PurePath(self.source.rpartition(":")[2])
        return last.stem if last.suffix in {".gguf", ".json"} else last.name


class HardwareSection(Section):
    """The device."""

    use: Annotated[Chosen, Uses("hardware")]
    """The hardware backend."""


class AttentionSection(Section):
    """Who attends. `attention: NAME` and `{use: NAME}` set both; or give `prefill` and `decode`."""

    prefill: Annotated[Chosen, Uses("attention")]
    """For requests with several new tokens in a step."""
    decode: Annotated[Chosen, Uses("attention")]
    """For requests with one new token, or one and its drafts."""


class CacheSection(Section):
    """Where keys and values live."""

    use: Annotated[Chosen, Uses("cache")]
    """The KV manager."""
    page_tokens: PositiveInt = 16
    """Tokens in a page."""
    memory: Bytes | Literal["auto"] = "auto"
    """Memory for pages, such as `2GiB`; `auto` takes what `max_running` requests of full length
    need: of what is free when the weights are loaded at most half, or on devices with graphs all
    that the largest steps, which run once to be measured, leave."""
    prefix: bool = True
    """Whether requests reuse the pages of a common beginning."""
    eviction: Annotated[Chosen, Uses("eviction", default="lru")]
    """Which unused page goes first."""


class SchedulerSection(Section):
    """What runs in the next step."""

    use: Annotated[Chosen, Uses("scheduler")]
    """The scheduler."""
    step_tokens: PositiveInt = 2048
    """Most tokens in a step."""
    max_running: PositiveInt = 64
    """Most requests that run at once."""
    predictor: Annotated[Chosen | None, Uses("predictor")] = None
    """Who predicts how long a step takes, for schedulers that ask."""


class QuantSection(Section):
    """How weights and cached values are stored."""

    use: Annotated[Chosen, Uses("quant", default="none")]
    """The quantizer of weights."""
    kv: Annotated[Chosen, Uses("kv_quant", default="none")]
    """The quantizer of keys and values."""


class SamplingSection(Section):
    """How the next token is chosen."""

    use: Annotated[Chosen, Uses("sampling", default="standard")]
    """The sampler."""
    processors: Annotated[tuple[Chosen, ...], Uses("processor")] = ()
    """Changes to the logits, in this order, after those of the sampler."""
    speculator: Annotated[Chosen | None, Uses("speculator")] = None
    """Who drafts tokens ahead."""
    grammar: Annotated[Chosen | None, Uses("grammar")] = None
    """Who enforces a format; without it, requests that ask for one are refused."""


class ExecutorSettings(Section):
    """Who runs a step."""

    use: Literal["torch", "late", "null"] = "torch"
    """`torch`; `late`, whose results come some steps late, to test overlap on a CPU; or `null`,
    which computes nothing, to measure the host."""
    late_steps: NonNegativeInt = 0
    """By how many steps results of `late` are late."""

    @model_validator(mode="before")
    @classmethod
    def _from_a_name(cls, value: object) -> object:
        # unquoted, YAML reads the word null as nothing
        if value is None or isinstance(value, str):
            return {"use": value or "null"}
        if isinstance(value, dict) and "use" in value and value["use"] is None:
            return {**value, "use": "null"}
        return value

    @model_validator(mode="after")
    def _late_steps_fit(self) -> Self:
        if (self.use == "late") != (self.late_steps > 0):
            raise ValueError("`late_steps` belongs to `use: late` and is at least 1 there")
        return self


class EngineSection(Section):
    """The step loop."""

    depth: NonNegativeInt = 1
    """Steps that may be in flight beyond the newest."""
    deterministic: bool = False
    """Results for a request do not depend on what else is in the batch; slower."""
    graphs: bool = True
    """Record decode steps, and what lies between the attentions of other steps, in graphs, where
    device and attention can."""
    warm_up: Literal["auto", "off", "kernels", "graphs"] = "auto"
    """What runs before the first request: `kernels` meets every kind of step once, so that nothing
    is compiled later; `graphs` also records every decode step, which takes seconds. `auto` is
    `kernels` on devices with graphs, `off` on others."""
    debug: bool = False
    """Assert the engine's invariants at every step; slow."""
    poison: bool = False
    """Fill pages with NaN when they change hands, so that a stale read shows; for tests."""
    executor: ExecutorSettings = ExecutorSettings()
    """Who runs a step."""


class ServerSection(Section):
    """The HTTP server."""

    host: str = "127.0.0.1"
    """Address to listen on. Others than this machine reach it only through another address."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    api_keys: FilePath | None = None
    """A file with one key a line; lines that begin with # are none. With it every endpoint but
    /health asks for one of them, as `Authorization: Bearer KEY`."""
    heartbeat_s: float = Field(default=1.0, gt=0)
    """Seconds between signs of life of the engine process."""
    silence_s: float = Field(default=10.0, gt=0)
    """Seconds without one after which /health says 503 and requests are refused, until the next."""
    restarts: NonNegativeInt = 3
    """How often in a row an engine that died is started anew: after a second, then after twice as
    many each time, 30 at most. One that ran for ten minutes begins a new row."""
    linger_s: float = Field(default=5.0, ge=0)
    """Seconds for which the server answers 503 after its engine died for good; then it exits."""
    shutdown_s: float = Field(default=30.0, ge=0)
    """Seconds that running requests get to finish when the server stops."""
    max_queue: PositiveInt = 1024
    """Most requests that wait; more are answered with 429. One with n answers counts n times."""
    body_bytes: Bytes = 8 * 2**20
    """Largest body of a request."""
    body_wait_s: float = Field(default=10.0, gt=0)
    """Seconds to wait for the headers of a request, and for the next piece of its body."""
    reader_wait_s: float = Field(default=30.0, gt=0)
    """Seconds for which a client may leave its answer unread before it is cut off."""
    max_connections: PositiveInt = 4096
    """Most open connections; one more is answered with 503 and closed."""
    json_depth: PositiveInt = 64
    """Deepest nesting of a body."""
    routes: Annotated[tuple[Chosen, ...], Uses("route")] = ()
    """Further HTTP endpoints, beside those of OpenAI's API."""


SECTIONS: dict[str, type[Section]] = {
    "model": ModelSection,
    "hardware": HardwareSection,
    "attention": AttentionSection,
    "cache": CacheSection,
    "scheduler": SchedulerSection,
    "quant": QuantSection,
    "sampling": SamplingSection,
    "engine": EngineSection,
    "server": ServerSection,
}
"""Every section, in the order of a recipe."""

LISTS: dict[str, str] = {"ops": "ops", "observers": "observer"}
"""Top-level lists of components, and their kinds."""

COMPONENT_SECTIONS = ("hardware", "attention", "cache", "scheduler", "quant", "sampling")
"""Sections that a bare name stands for."""

REQUIRED = ("model", "hardware", "attention", "cache", "scheduler")
"""Sections that a recipe must have."""

LATER = ("parallel", "lab")
"""Sections that are reserved and not supported yet."""
