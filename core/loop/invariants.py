"""What must hold between steps. Checked after every step in debug mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .state import Status

if TYPE_CHECKING:
    from .engine import Engine


def check_invariants(engine: Engine) -> None:
    """Raise if the engine's books do not balance.

    Raises:
        AssertionError: Lists every broken invariant.
    """
    broken = [*_pools(engine), *_counts(engine), *_slots(engine), *_table(engine), *_ends(engine)]
    broken += engine.parts.cache.check_integrity()
    if broken:
        raise AssertionError("; ".join(broken))


def _pools(engine: Engine) -> list[str]:
    idle = not engine.states and not engine.flying
    broken = []
    for pool, usage in enumerate(engine.usage()):
        total = usage.free + usage.evictable + usage.in_use + usage.pinned
        if total != usage.total:
            broken.append(f"pool {pool} adds up to {total} of {usage.total} pages")
        if idle and (usage.in_use or usage.pinned):
            broken.append(f"pool {pool} is in use at idle: {usage}")
    return broken


def _counts(engine: Engine) -> list[str]:
    broken = _steps(engine)
    for state in engine.view.running:
        if not 0 <= state.computed <= state.granted:
            broken.append(f"request {state.uid}: computed {state.computed} of {state.granted}")
        if state.computed > state.known:
            broken.append(f"request {state.uid}: computed {state.computed} > known {state.known}")
        if not state.in_flight and state.known != len(state.tokens):
            broken.append(f"request {state.uid}: knows {len(state.tokens)}, counts {state.known}")
        if state.cached_tokens > state.prompt_tokens - 1 and state.preemptions == 0:
            broken.append(f"request {state.uid}: the whole prompt came from the cache")
    return broken


def _steps(engine: Engine) -> list[str]:
    broken = []
    for batch in engine.flying:
        tokens = int(batch.columns.tokens.sum())
        if tokens > engine.parts.limits.step_tokens:
            broken.append(f"step {batch.step} holds {tokens} tokens")
        if (batch.columns.tokens < 1).any():
            broken.append(f"step {batch.step} holds a request without tokens")
    return broken


def _slots(engine: Engine) -> list[str]:
    taken = [state.slot for state in engine.view.running]
    if len(set(taken)) != len(taken) or len(taken) != engine.slots.in_use:
        return [f"slots {sorted(taken)} are taken, {engine.slots.in_use} are given out"]
    return []


def _table(engine: Engine) -> list[str]:
    """Compare the table with what it stands for, request by request."""
    table, running, broken = engine.table, list(engine.view.running), []
    if table.order.tolist() != [state.slot for state in running]:
        broken.append("the table has other requests than run, or in another order")
    for state in running:
        if table.states[state.slot] is not state or table.uid[state.slot] != state.uid:
            broken.append(f"request {state.uid} does not have the row of its slot")
        if state.pending != min(state.known, state.last_known) - state.computed:
            broken.append(f"request {state.uid}: pending {state.pending} does not follow")
        if table.read(np.array([state.slot]))[0] != len(state.tokens):
            broken.append(f"request {state.uid}: may get {state.left} more tokens, has some")
    return broken


def _ends(engine: Engine) -> list[str]:
    return [
        f"request {state.uid} has ended and is still listed"
        for state in engine.states.values()
        if state.status is Status.FINISHED or state.finish is not None
    ]
