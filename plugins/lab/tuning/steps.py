"""Steps to be measured: requests that nobody made, each on pages of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from camshaft.errors import CamshaftError
from camshaft.executor.warm_steps import prompts
from camshaft.step import Ragged, int32

from .costs import Mix

if TYPE_CHECKING:
    from camshaft.compose import Composed
    from camshaft.step import Step


@dataclass(frozen=True, slots=True)
class Load:
    """The largest step that the search is about.

    Attributes:
        mix: How many decode, and how many prompts come beside them.
        context: Tokens in pages of each request that decodes.
        length: Tokens of each prompt.
    """

    mix: Mix
    context: int
    length: int

    def check(self, composed: Composed) -> None:
        """Refuse what the engine cannot run.

        Raises:
            CamshaftError: Says everything that is too large.
        """
        scheduler, room = composed.drawing.recipe.scheduler, composed.memory.room
        tokens = self.mix.tokens(self.length)
        faults = [
            f"{what} are {value}, and this engine has room for {most} ({cure})"
            for what, value, most, cure in (
                ("requests", self.mix.requests, scheduler.max_running, "scheduler.max_running"),
                ("tokens of the step", tokens, scheduler.step_tokens, "scheduler.step_tokens"),
                ("tokens of a request", self.context + 1, room, "model.max_context, cache.memory"),
                ("tokens of a prompt", self.length, room - 1, "model.max_context, cache.memory"),
            )
            if value > most
        ]
        if self.mix.requests < 2:
            faults.append("a step of less than two requests cannot be split")
        if faults:
            raise CamshaftError(f"engine tune: {'; '.join(faults)}.")


def step_of(mix: Mix, load: Load, composed: Composed) -> Step:
    """Return a step that holds `mix`: those that decode first, then new prompts.

    Pages are given out in turn, and again from the start when the pool is at its end: what matters
    is that they are too many for any cache of the device. Their content does not matter.
    """
    step = prompts([1] * mix.decodes + [load.length] * mix.prompts)
    step.context[: mix.decodes] = load.context
    step.admissions.context[:] = step.context
    page_tokens, pages = composed.memory.page_tokens, composed.memory.pages
    lengths = np.diff(step.starts) + step.context
    wanted = -(-lengths // page_tokens)
    ends = np.cumsum(wanted)
    lists = [
        (1 + np.arange(end - count, end) % pages).tolist()
        for end, count in zip(ends.tolist(), wanted.tolist(), strict=True)
    ]
    groups, requests = len(composed.drawing.groups), mix.requests
    step.write_group = int32(np.repeat(np.arange(groups), requests))
    step.write_slot = int32(np.tile(step.slots, groups))
    step.write_first = np.zeros(groups * requests, dtype=np.int32)
    step.write_pages = Ragged.of(lists * groups)
    return step
