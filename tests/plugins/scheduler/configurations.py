"""Every scheduler of this folder, in the settings that change what it decides."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from camshaft.registry import Registry

if TYPE_CHECKING:
    from camshaft.component import Component
    from camshaft.contracts.scheduler import Scheduler, SchedulerLimits

CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "static": ("static", {"batch_size": 2}),
    "dynamic": ("dynamic", {"min_batch_size": 2, "max_batch_size": 3, "max_wait_s": 0.0}),
    "continuous": ("continuous", {}),
    "chunks": ("continuous", {"chunk_tokens": 2}),
    "whole": ("continuous", {"chunk_tokens": "off", "share_prefixes": False}),
    "tenants": ("continuous", {"order": "tenants"}),
    "prefix": ("continuous", {"order": "prefix", "prefix_window": 4, "prefix_age_s": 20.0}),
    "buckets": ("continuous", {"length_buckets": (2, 4)}),
    "nano": ("nano_batch", {"minimum_tokens": 2, "shares": (1, 2)}),
    "slo": ("slo", {}),
}


@functools.cache
def component(name: str) -> Component:
    """Return a scheduler's description."""
    return Registry.discover().get("scheduler", name)


def scheduler(name: str, limits: SchedulerLimits) -> Scheduler:
    """Build one."""
    component_name, settings = CONFIGURATIONS[name]
    chosen = component(component_name)
    built: Scheduler = chosen.load()(chosen.settings(**settings), limits)
    return built
