"""The components of this folder: light descriptions, read at discovery."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from camshaft.component import Component, Settings
from camshaft.hooks import hookimpl


class ContinuousSettings(Settings):
    """Settings of `continuous`."""

    chunk_tokens: PositiveInt | Literal["budget", "off"] = "budget"
    """Most prompt tokens of one request in a step. `budget` is what decodes leave of the step;
    `off` starts a prompt only when that holds all of it, unless it is larger than a step."""

    chunk_align: PositiveInt = 1024
    """Chunks that leave some of a prompt for later end at multiples of it, so that attention finds
    whole blocks. Only where prompt, chunk and step have four times as many tokens; 1 cuts none."""

    share_prefixes: bool = True
    """Start a prompt one step later when another one in this step computes its next page: by then
    it is in the cache. Off, prompts that come together compute a common prefix each."""

    step_ms: PositiveFloat | Literal["off"] = "off"
    """Longest step in which prompts join decodes, milliseconds: chunks are as long as the
    scheduler's `predictor` allows, 16 tokens at least. `off` leaves it to `step_tokens`."""

    order: Literal["arrival", "tenants", "prefix"] = "arrival"
    """Who of those that wait goes first. `tenants`: of the tenant that was served fewest tokens.
    `prefix`: who has the most tokens in the cache."""

    output_weight: PositiveFloat = 2.0
    """With `order: tenants`: what a token of output counts, one of a prompt counting 1."""

    prefix_window: PositiveInt = 64
    """With `order: prefix`: how many of those that have waited longest are compared."""

    prefix_age_s: PositiveFloat = 5.0
    """With `order: prefix`: who has waited longer goes first, by arrival."""

    length_buckets: tuple[PositiveInt, ...] = ()
    """Longest prompt of each bucket, ascending; longer ones are in one more. Prompts that start in
    the same step are of one bucket, that of the first in the order."""

    preemption: Literal["cheaper", "recompute", "swap"] = "cheaper"
    """What becomes of what a request has computed that gives way when pages run out. `swap` copies
    it to the tiers of a cache that has some; `cheaper` does so where that is predicted to take less
    time than to compute again what else would be lost, so never without tiers or a `predictor`."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if list(self.length_buckets) != sorted(set(self.length_buckets)):
            raise ValueError("`length_buckets` must ascend")
        if self.chunk_tokens == "off" and self.step_ms != "off":
            raise ValueError("`step_ms` cuts prompts, which `chunk_tokens: off` forbids")
        for name, order in (
            ("output_weight", "tenants"),
            ("prefix_window", "prefix"),
            ("prefix_age_s", "prefix"),
        ):
            default = type(self).model_fields[name].default  # recipes travel with all fields set
            if getattr(self, name) != default and self.order != order:
                raise ValueError(f"`{name}` has an effect only with `order: {order}`")
        return self


class NanoBatchSettings(ContinuousSettings):
    """Settings of `nano_batch`: those of `continuous`, and how a step is cut into nano-batches."""

    by: Literal["tokens", "phase"] = "tokens"
    """What a nano-batch holds: a share of the step's tokens, or, with `phase`, either requests that
    decode or prompts. Cuts are between requests."""

    shares: tuple[PositiveFloat, ...] = Field(default=(0.5, 0.5), min_length=2)
    """With `by: tokens`: the share of each nano-batch, relative to their sum."""

    minimum_tokens: PositiveInt = 1024
    """Smaller steps stay whole: each nano-batch reads the weights anew."""

    @model_validator(mode="after")
    def _shares_count(self) -> Self:
        default = type(self).model_fields["shares"].default
        if self.by == "phase" and self.shares != default:
            raise ValueError("`shares` has an effect only with `by: tokens`")
        return self


class StaticSettings(Settings):
    """Settings of `static`."""

    batch_size: PositiveInt = 8
    """Most requests of a batch. The next one starts when the last of them has ended."""


class DynamicSettings(Settings):
    """Settings of `dynamic`."""

    min_batch_size: PositiveInt = 4
    """Requests that start a batch at once."""

    max_batch_size: PositiveInt = 64
    """Most requests of a batch."""

    max_wait_s: NonNegativeFloat = 0.05
    """Seconds that the first request waits for `min_batch_size`."""

    @model_validator(mode="after")
    def _sizes_ascend(self) -> Self:
        if self.min_batch_size > self.max_batch_size:
            raise ValueError("`min_batch_size` is larger than `max_batch_size`")
        return self


class SloSettings(Settings):
    """Settings of `slo`. Its predictions are those of `scheduler.predictor`; without, none."""

    ttft_s: PositiveFloat | None = None
    """Seconds to the first token of requests that name no `ttft_slo_ms`; null sets no deadline."""

    tpot_s: PositiveFloat | None = None
    """Seconds per later token of requests that name no `tpot_slo_ms`; null sets none."""

    admission: Literal["refuse", "queue"] = "refuse"
    """What becomes of a request that cannot get its first token in time: `refuse` answers 429 and
    says when to try again; `queue` serves it behind those that can be in time."""

    aging_s: PositiveFloat = 30.0
    """Seconds after which a request that still waits gets its turn, however urgent others are."""

    aging_every: PositiveInt = 8
    """While some have waited for `aging_s`, one of so many requests to start is the oldest."""

    preemption: Literal["cheaper", "recompute", "swap", "off"] = "cheaper"
    """Whether running requests of a less urgent level give way to a waiting one that would be late,
    and as in `continuous` what becomes of what they have computed. With `off` they give way only
    when pages run out."""

    preempt_at: float = Field(default=0.5, ge=0, le=1)
    """Share of the time it could wait after which one takes the place of a less urgent one."""

    margin: float = Field(default=1.25, ge=1)
    """Predicted times are multiplied with it."""

    tpot_burst: float = Field(default=2.0, ge=1)
    """Prompts may prolong a step to so many times the shortest TPOT that a running request wants,
    of those as urgent as they, as far as that one is ahead of its time. Who is further behind than
    that is not waited for."""

    chunk_align: PositiveInt = 1024
    """As in `continuous`."""

    share_prefixes: bool = True
    """As in `continuous`."""


class FittedSettings(Settings):
    """Settings of `fitted`."""

    memory_steps: float = Field(default=256.0, gt=1)
    """Steps after which an observation counts a third."""

    damping_steps: float = Field(default=4.0, gt=0)
    """Observations of a cost that weigh as much as what was assumed of it before."""


@hookimpl
def camshaft_components() -> list[Component]:
    """Describe what this folder provides."""
    return [
        Component(
            kind="scheduler",
            name="continuous",
            implementation="camshaft.plugins.scheduler.continuous:Continuous",
            settings=ContinuousSettings,
            summary="mixed steps under a token budget: decodes first, prompts in chunks",
        ),
        Component(
            kind="scheduler",
            name="nano_batch",
            implementation="camshaft.plugins.scheduler.nano_batch:NanoBatch",
            settings=NanoBatchSettings,
            summary="`continuous`, with steps cut into nano-batches that the device overlaps",
        ),
        Component(
            kind="scheduler",
            name="static",
            implementation="camshaft.plugins.scheduler.static:Static",
            settings=StaticSettings,
            summary="batches of a fixed size, each run to the end of its longest answer",
        ),
        Component(
            kind="scheduler",
            name="dynamic",
            implementation="camshaft.plugins.scheduler.dynamic:Dynamic",
            settings=DynamicSettings,
            summary="batches that wait a little for company, each run to its end",
        ),
        Component(
            kind="scheduler",
            name="slo",
            implementation="camshaft.plugins.scheduler.slo.scheduler:Slo",
            settings=SloSettings,
            summary="least slack first, by priority and deadline; refuses what would be late",
        ),
        Component(
            kind="predictor",
            name="fitted",
            implementation="camshaft.plugins.scheduler.fitted:Fitted",
            settings=FittedSettings,
            summary="costs of tokens, context and rows, fitted while it runs",
        ),
    ]
