"""Running a traced step again: eagerly and alone, on the pages that it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from camshaft.compose import draw
from camshaft.compose.memory import group_page_bytes
from camshaft.executor.trace_files import MASKS, STEP, TracedRow, TraceError, array_name
from camshaft.executor.traced_rows import traced_rows
from camshaft.recipe import parse_recipe
from camshaft.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from camshaft import Registry
    from camshaft.contracts.attention import AttentionLayer
    from camshaft.executor.metadata import StepTensors
    from camshaft.executor.torch_executor import TorchExecutor
    from camshaft.executor.trace_files import TraceHead
    from camshaft.recipe import Recipe

_PLAIN = ("attention=reference", "ops=[]", "quant.kv=none", "sampling.use=standard")
_SPARE_PAGES = 2


@dataclass(frozen=True, slots=True)
class LayerNote:
    """What went into the attention of a layer, or came out.

    Attributes:
        layer: Of the model.
        what: `qkv` or `attended`.
        rms: Root of the mean square of what is finite.
        greatest: Of the same, without its sign.
        not_finite: Numbers that are not.
    """

    layer: int
    what: str
    rms: float
    greatest: float
    not_finite: int

    @classmethod
    def of(cls, layer: int, what: str, values: torch.Tensor) -> LayerNote:
        """Describe a tensor."""
        values = values.float()
        fine = values[values.isfinite()]
        if not len(fine):
            return cls(layer, what, 0.0, 0.0, values.numel())
        rms, greatest = float(fine.square().mean().sqrt()), float(fine.abs().max())
        return cls(layer, what, rms, greatest, values.numel() - fine.numel())


@dataclass(slots=True)
class Rerun:
    """What came of the step now.

    Attributes:
        rows: Its requests, as in the trace.
        layers: In the order in which they ran.
        logit_errors: The greatest difference of each row whose logits the trace has.
    """

    rows: list[TracedRow]
    layers: list[LayerNote] = field(default_factory=list)
    logit_errors: list[float] = field(default_factory=list)

    def differing(self, head: TraceHead) -> list[int]:
        """Return places of the requests that got other tokens than in the trace."""
        return [
            place
            for place, (then, now) in enumerate(zip(head.rows, self.rows, strict=True))
            if (then.chosen, then.finite) != (now.chosen, now.finite)
        ]

    def agrees(self, head: TraceHead) -> bool:
        """Return whether all tokens are those of the trace."""
        return not self.differing(head)


def rerun_recipe(
    head: TraceHead, registry: Registry, overrides: Iterable[str] = (), *, plain: bool = False
) -> Recipe:
    """Return the recipe of a trace for one eager step: with just the pages that it needs.

    Raises:
        RecipeError: It does not compose here.
    """
    mapping = {**head.recipe, "observers": []}
    scheduler = {name: head.recipe["scheduler"][name] for name in ("step_tokens", "max_running")}
    mapping["scheduler"] = {"use": "continuous", **scheduler}
    mapping["cache"] = {"use": "paged", "page_tokens": head.page_tokens, "prefix": False}
    mapping["engine"] = {
        **head.recipe["engine"],
        "executor": {"use": "torch"},
        "graphs": False,
        "depth": 0,
        "warm_up": "off",
    }
    changes = [*(_PLAIN if plain else ()), *overrides]
    drawing = draw(parse_recipe(mapping, registry, changes))
    pages = max(*head.pages, head.longest_table) + _SPARE_PAGES
    mapping["cache"]["memory"] = (pages + 1) * sum(group_page_bytes(drawing))
    return parse_recipe(mapping, registry, changes)


def rerun(executor: TorchExecutor, head: TraceHead, arrays: Mapping[str, NDArray[Any]]) -> Rerun:
    """Run the step of a trace.

    Args:
        executor: Fresh, of `rerun_recipe`.
        head: Of the trace.
        arrays: Of the trace.

    Raises:
        TraceError: Its step or pages are not what this engine takes.
    """
    _fill_pages(executor, head, arrays)
    step = _step(arrays, head)
    found = Rerun([])
    _watch(executor, found.layers)
    executor.launch(step)
    logits = executor.logits_of(step.id)
    if logits is not None:
        found.logit_errors = list(_logit_errors(head.rows, *logits))
    executor.sample(step.id, arrays.get(MASKS))
    output = executor.wait(step.id)
    found.rows = traced_rows(step, output)
    return found


def _step(arrays: Mapping[str, NDArray[Any]], head: TraceHead) -> Step:
    try:
        step = Step.unpack(arrays[STEP])
    except (KeyError, ValueError) as error:
        raise TraceError(f"the trace's array '{STEP}': {error}") from None
    if len(step.slots) != len(head.rows):
        raise TraceError(
            f"the trace's step has {len(step.slots)} requests, and its head {len(head.rows)}"
        )
    return step


def _fill_pages(
    executor: TorchExecutor, head: TraceHead, arrays: Mapping[str, NDArray[Any]]
) -> None:
    groups = executor.parts.groups
    layouts = [repr(one.decode.kv_layout()) for one in groups]
    if layouts != head.layouts:
        raise TraceError(
            f"pages of the trace lie in memory as {head.layouts}, and those of this engine as "
            f"{layouts}; keep attention and quant.kv as they were (without --plain)"
        )
    for index, (group, count) in enumerate(zip(groups, head.pages, strict=True)):
        for layer, fields in group.fields.items():
            for name, tensor in fields.items():
                content = arrays.get(array_name(index, layer, name))
                if content is None or len(content) != count:
                    raise TraceError(f"the trace lacks pages of layer {layer}, field '{name}'")
                _fill(tensor, content)


def _fill(tensor: torch.Tensor, content: NDArray[np.uint8]) -> None:
    """Fill pages from 1 on."""
    raw = torch.from_numpy(content).view(tensor.dtype).view(len(content), *tensor.shape[1:])
    tensor[1 : 1 + len(content)] = raw.to(tensor.device)


def _watch(executor: TorchExecutor, notes: list[LayerNote]) -> None:
    """Note what goes into attention and comes out of it, in the executor of one step."""
    attend = executor.attend

    def noting(
        layer: AttentionLayer, qkv: torch.Tensor, tensors: StepTensors, out: torch.Tensor
    ) -> None:
        notes.append(LayerNote.of(layer.index, "qkv", qkv))
        attend(layer, qkv, tensors, out)
        notes.append(LayerNote.of(layer.index, "attended", out))

    executor.attend = noting  # type: ignore[method-assign] # this object's alone


def _logit_errors(
    rows: Sequence[TracedRow], where: NDArray[np.int32], logits: torch.Tensor
) -> Iterable[float]:
    for place, now in zip(where.tolist(), logits.float(), strict=True):
        then = rows[place]
        if then.top_ids:
            wanted = torch.tensor(then.top_logits, device=now.device)
            yield float((now[then.top_ids] - wanted).abs().max())
