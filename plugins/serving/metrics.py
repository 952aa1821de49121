"""What /metrics tells: the engine's counters as they are now, and latencies seen from here."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.core import Metric

    from camshaft.client import Snapshot
    from camshaft.generate import Call, Delta

COUNTERS = {
    "steps": ("steps", "Steps launched."),
    "step_tokens": ("step_tokens", "Tokens computed in all steps."),
    "nano_steps": ("nano_steps", "Steps launched in nano-batches."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of admitted requests."),
    "cached_tokens": ("cached_prompt_tokens", "Prompt tokens served from the cache."),
    "output_tokens": ("generation_tokens", "Tokens generated, aborted requests included."),
    "requests": ("requests", "Requests submitted; a call for n answers is n."),
    "waits": ("page_waits", "Placements put off because pages were still in use."),
    "dropped": ("dropped_plans", "Plans of which nothing could be placed."),
    "host_waits": ("host_waits", "Sample launches delayed until the host had read tokens."),
    "wasted_tokens": ("wasted_tokens", "Tokens sampled for requests that had ended by then."),
    "failed_launches": ("failed_launches", "Steps whose launch failed."),
}
"""Counters of the engine: name here, and what it counts."""

BY_LABEL = {
    "finished": ("requests_finished", "reason", "Requests ended, by reason."),
    "preemptions": ("preemptions", "cause", "Preemptions, by cause."),
    "swaps": ("preemptions_by_swap", "cause", "Of these, those by swap; others are recomputed."),
    "evictions": ("kv_evicted_pages", "reason", "Pages that the cache lost, by reason."),
}
"""Counters of the engine that have a label."""

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


_SLACK = (-30, -10, -3, -1, -0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)


class Metrics:
    """The meters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._page_bytes: Sequence[int] = ()
        self._restarts = 0
        self._registry = CollectorRegistry()
        self._registry.register(_Engine(self))
        self.http = Counter(
            "camshaft_http_requests",
            "Requests to the server, by endpoint and status.",
            ("endpoint", "status"),
            registry=self._registry,
        )
        self.first_token = self._histogram("ttft", "Time to the first token of a choice.")
        self.per_token = self._histogram("tpot", "Time per later token of a choice.")
        self.whole = self._histogram("e2e", "Time to the last token of a choice.")
        self.slack = Histogram(
            "camshaft_slack_seconds",
            "What was left of a wanted time, by which it was; below 0 it was missed.",
            ("of",),
            buckets=_SLACK,
            registry=self._registry,
        )
        self.goodput = Counter(
            "camshaft_slo_choices",
            "Choices for which a time was wanted, by what came of it: met, missed or refused.",
            ("result",),
            registry=self._registry,
        )

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(
            f"camshaft_{name}_seconds", text, buckets=_SECONDS, registry=self._registry
        )

    def text(
        self, snapshot: Snapshot | None, page_bytes: Sequence[int], restarts: int = 0
    ) -> bytes:
        """Return all metrics in Prometheus' text form.

        Args:
            snapshot: Of the engine; None when it does not answer.
            page_bytes: Of a page of each of its pools; not looked at when it does not answer.
            restarts: Of the engine.
        """
        self._snapshot, self._page_bytes, self._restarts = snapshot, page_bytes, restarts
        return generate_latest(self._registry)

    def engine_metrics(self) -> Iterator[Metric]:
        """Yield what the last snapshot says."""
        snapshot = self._snapshot
        yield GaugeMetricFamily(
            "camshaft_engine_up", "1 while the engine answers.", value=float(snapshot is not None)
        )
        yield CounterMetricFamily(
            "camshaft_engine_restarts",
            "Times that a dead engine was started anew; its counters begin at 0.",
            value=self._restarts,
        )
        if snapshot is None:
            return
        for name, (own, text) in COUNTERS.items():
            yield CounterMetricFamily(f"camshaft_{own}", text, value=snapshot.counters[name])
        for name, (own, label, text) in BY_LABEL.items():
            family = CounterMetricFamily(f"camshaft_{own}", text, labels=[label])
            for value, count in snapshot.by_label[name].items():
                family.add_metric([value], count)
            yield family
        for name, counted in snapshot.cache.items():
            text = f"What the cache counts as {name.replace('_', ' ')}."
            kind = GaugeMetricFamily if name.endswith("_held") else CounterMetricFamily
            yield kind(f"camshaft_cache_{name}", text, value=counted)
        yield from _gauges(snapshot)
        yield from _pools(snapshot, self._page_bytes)


def _gauges(snapshot: Snapshot) -> Iterator[Metric]:
    for name, value, text in (
        ("requests_running", snapshot.running, "Requests that hold a slot."),
        ("requests_waiting", snapshot.waiting, "Requests that wait for one."),
        (
            "steps_in_flight_max",
            snapshot.counters["most_in_flight"],
            "Most steps in flight so far.",
        ),
        (
            "prefix_hit_ratio",
            snapshot.counters["cached_tokens"] / max(1, snapshot.counters["prompt_tokens"]),
            "Share of all prompt tokens so far that the cache served.",
        ),
        (
            "kv_unused_tokens",
            snapshot.unused_tokens,
            "Tokens that running requests have pages for and have not computed: fragmentation.",
        ),
    ):
        yield GaugeMetricFamily(f"camshaft_{name}", text, value=value)
    error = snapshot.prediction_error
    yield GaugeMetricFamily(
        "camshaft_step_prediction_error",
        "Mean of |predicted / measured time - 1| of the latest steps; NaN without a predictor.",
        value=math.nan if error is None else error,
    )


def _pools(snapshot: Snapshot, page_bytes: Sequence[int]) -> Iterator[Metric]:
    labels = ["pool", "state"]
    pages = GaugeMetricFamily(
        "camshaft_kv_pages", "Pages of the cache, by pool and state.", labels=labels
    )
    held = GaugeMetricFamily("camshaft_kv_bytes", "The same in bytes.", labels=labels)
    for pool, (usage, size) in enumerate(zip(snapshot.pools, page_bytes, strict=True)):
        for state in ("free", "evictable", "in_use", "pinned"):
            count = getattr(usage, state)
            pages.add_metric([str(pool), state], count)
            held.add_metric([str(pool), state], count * size)
    yield from (pages, held)


class _Engine:
    """Asks for the engine's metrics at every scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.engine_metrics()


class Meter:
    """Measures one call from its making on."""

    def __init__(self, metrics: Metrics, call: Call) -> None:
        self._metrics = metrics
        self._call = call
        self._began = time.monotonic()
        self._first: dict[int, float] = {}
        self._tokens: dict[int, int] = {}
        self._missed: set[int] = set()
        self._ended = 0

    def observe(self, delta: Delta) -> None:
        """Take note of what a step brought."""
        now, index, metrics = time.monotonic(), delta.index, self._metrics
        if index not in self._first:
            self._first[index] = now
            metrics.first_token.observe(now - self._began)
            self._compare("ttft", self._call.ttft_slo_s, now - self._began, index)
        self._tokens[index] = self._tokens.get(index, 0) + len(delta.token_ids)
        if delta.finish is not None:
            metrics.whole.observe(now - self._began)
            later = self._tokens[index] - 1
            if later > 0:
                per_token = (now - self._first[index]) / later
                metrics.per_token.observe(per_token)
                self._compare("tpot", self._call.tpot_slo_s, per_token, index)
            self._ended += 1
            self._count("missed" if index in self._missed else "met")

    def refused(self) -> None:
        """Take note that the engine turned the call away."""
        self._count("refused", self._call.choices - self._ended)

    def _compare(self, of: str, wanted: float | None, took: float, index: int) -> None:
        if wanted is not None:
            self._metrics.slack.labels(of).observe(wanted - took)
            if took > wanted:
                self._missed.add(index)

    def _count(self, result: str, choices: int = 1) -> None:
        call = self._call
        if call.ttft_slo_s is not None or call.tpot_slo_s is not None:
            self._metrics.goodput.labels(result).inc(choices)
