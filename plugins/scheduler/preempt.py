"""How one that gives way loses its pages: it is computed again, or swapped out and in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from camshaft.contracts.scheduler import Preemption

if TYPE_CHECKING:
    from camshaft.contracts.scheduler import PreemptMode, RequestView, View

    Wanted = Literal["cheaper", "recompute", "swap"]


def preempt(
    view: View, request: RequestView | None, wanted: Wanted, cause: str = "no_space"
) -> Preemption | None:
    """Return the preemption of a running request, if there is one to preempt.

    Args:
        view: Of the engine.
        request: Who gives way, or None.
        wanted: In which way. `cheaper` swaps what is predicted to come back in less time than it
            takes to compute; without tiers, or without a predictor, that is nothing.
        cause: What it is counted as.
    """
    if request is None:
        return None
    mode = _cheaper(view, request) if wanted == "cheaper" else wanted
    return Preemption(request, mode, cause)


def no_swap_faults(wanted: str, no_swap: str) -> list[str]:
    """Return what is wrong with wanting swap from a cache that says why it has none."""
    return [f"`preemption: swap`: {no_swap}"] if wanted == "swap" and no_swap else []


def _cheaper(view: View, request: RequestView) -> PreemptMode:
    """Compare the time of a load with what computing adds to the step of those that decode."""
    cost = view.swap_cost(request)
    if cost is None or not cost.tokens:
        return "recompute"
    beside = view.shape(view.one_pending)
    with_it = beside._replace(
        requests=beside.requests + 1,
        tokens=beside.tokens + cost.tokens,
        context=beside.context + request.computed,
        logits_rows=beside.logits_rows + 1,
    )
    recompute_s = view.predict(with_it) - view.predict(beside)
    return "swap" if cost.seconds < recompute_s else "recompute"
