"""The two halves of a recipe: its engine, and the text side that whoever serves it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.checkpoint import open_checkpoint, random_checkpoint
from camshaft.text import load_text

from .warm import warm_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.compose import Composed
    from camshaft.executor.trace_files import TraceOrder
    from camshaft.info import EngineInfo
    from camshaft.recipe import Recipe
    from camshaft.text import TextModel

    from .loop import SteppedEngine


def build_engine(
    recipe: Recipe,
    progress: Callable[[str], None] = lambda _: None,
    trace: TraceOrder | None = None,
) -> tuple[SteppedEngine, EngineInfo]:
    """Compose the engine of a recipe and warm it up.

    Args:
        recipe: Validated.
        progress: Is told what happens, in a few words.
        trace: A step to keep, counted from behind the warm-up.

    Raises:
        CamshaftError: Parts do not fit, or weights are missing or damaged.
    """
    # torch comes with it: not wanted in a process that only talks to an engine
    from camshaft.compose import compose

    composed = compose(recipe, progress=progress)
    progress("warming up")
    warm_up(composed.engine, composed.info)
    if trace is not None:
        _trace(composed, trace)
    return composed.engine, composed.info


def _trace(composed: Composed, order: TraceOrder) -> None:
    from camshaft.executor.step_trace import trace

    parts, recipe = composed.engine.parts, composed.drawing.recipe
    parts.executor = trace(
        parts.executor,
        order,
        recipe=recipe.as_mapping(),
        recipe_name=recipe.name,
        page_tokens=composed.memory.page_tokens,
    )


def load_text_of(recipe: Recipe) -> TextModel:
    """Load tokenizer and chat template of a recipe's model. Reads no weights and needs no torch.

    Raises:
        CheckpointError: They are missing or damaged.
    """
    model = recipe.model
    if model.config is not None:
        return load_text(random_checkpoint(model.config, model.seed))
    assert model.source is not None
    return load_text(open_checkpoint(model.source, seed=model.seed))
