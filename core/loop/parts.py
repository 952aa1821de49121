"""What an engine is composed of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..contracts.cache import KVManager
    from ..contracts.executor import Executor
    from ..contracts.observer import Observer
    from ..contracts.predictor import StepTimePredictor
    from ..contracts.scheduler import Scheduler, SchedulerLimits
    from .clock import Clock


@dataclass(slots=True)
class EngineParts:
    """What an engine is composed of.

    Attributes:
        executor: Runs steps.
        cache: Gives pages.
        scheduler: Decides.
        limits: Of the recipe.
        clock: Time.
        page_tokens: Of a manager page.
        room: Longest sequence, prompt and output, that the model and the pools can hold.
        vocab: Ids are below it.
        eos_ids: End a request unless it ignores them.
        depth: Steps in flight behind the newest one.
        predictor: Or None.
        observers: Told what happens.
        debug: Check every invariant after every step.
        positions: Of the model, of which modules may leave some out; 0 is `room`.
        causal: Whether a token depends on earlier ones only. If not, a text is computed in one
            step, and nothing is generated.
        entropy: Seeds requests that bring no seed; None draws from the system.
    """

    executor: Executor
    cache: KVManager
    scheduler: Scheduler
    limits: SchedulerLimits
    clock: Clock
    page_tokens: int
    room: int
    vocab: int
    eos_ids: frozenset[int]
    depth: int = 1
    predictor: StepTimePredictor | None = None
    observers: list[Observer] = field(default_factory=list)
    debug: bool = False
    positions: int = 0
    causal: bool = True
    entropy: int | None = None
