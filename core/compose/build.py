"""Building: open the device, load the weights, allocate the pools, start the loop."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from camshaft.checkpoint.fingerprint import fingerprint
from camshaft.executor.graphs import DecodeGraphs
from camshaft.executor.groups import allocate_group
from camshaft.executor.late import LateExecutor
from camshaft.executor.null import NullExecutor
from camshaft.executor.pieces import LayerGraphs
from camshaft.executor.state import DeviceState
from camshaft.executor.torch_executor import TorchExecutor, TorchParts
from camshaft.executor.warm_up import run_largest
from camshaft.text import load_text

from ..contracts.cache import CacheSpec, GroupSpec
from ..contracts.model import ModelFacts, ModelParts
from ..contracts.sampling import SamplerSpec
from ..contracts.scheduler import SchedulerLimits
from ..facts import Capability
from ..info import EngineInfo
from ..kernel_launch import know_the_compiler
from ..loop.clock import Clock
from ..loop.engine import Engine
from ..loop.parts import EngineParts
from ..ops import compose_ops
from .draw import Drawing, draw
from .memory import MemoryPlan, plan_memory
from .warm import prepare_kernels, run_every_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from camshaft.text import TextModel

    from ..contracts.cache import KVManager
    from ..contracts.executor import Executor
    from ..contracts.model import Model
    from ..contracts.ops import Ops
    from ..contracts.predictor import StepTimePredictor
    from ..contracts.sampling import Sampler
    from ..contracts.scheduler import Scheduler
    from ..recipe import Recipe


@dataclass(slots=True)
class Composed:
    """A running engine and what it was made of."""

    engine: Engine
    info: EngineInfo
    text: TextModel
    memory: MemoryPlan
    drawing: Drawing


def compose(
    recipe: Recipe,
    *,
    clock: Clock | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Composed:
    """Build the engine that a recipe describes.

    Args:
        recipe: Validated.
        clock: Time; real by default.
        progress: Is told what happens, in a few words.

    Raises:
        RecipeError: Parts do not fit.
        CheckpointError: Weights are missing or damaged.
        DeviceError: It does not fit the device.
    """
    clock = clock or Clock()
    progress("reading the model's description")
    drawing = draw(recipe)
    with ThreadPoolExecutor(2) as pool:  # the tokenizer is built while weights are read
        text_model = pool.submit(load_text, drawing.checkpoint)
        if Capability.TRITON in drawing.facts.capabilities:
            pool.submit(know_the_compiler)
        drawing.hardware.open()
        return _assemble(drawing, clock, text_model.result, progress)


def _assemble(
    drawing: Drawing,
    clock: Clock,
    text_model: Callable[[], TextModel],
    progress: Callable[[str], None],
) -> Composed:
    recipe = drawing.recipe
    null = recipe.engine.executor.use == "null"
    ops = compose_ops((one.build() for one in recipe.ops), drawing.facts, recipe.model.dtype)
    model: Model | None = None
    if not null:
        progress("loading weights")
        model = _build_model(drawing, ops)
        drawing.hardware.trim()  # of what loading needed
    weight_bytes = model.facts.weight_bytes if model is not None else 0
    memory = plan_memory(drawing, weight_bytes, drawing.hardware.memory())
    is_measured = recipe.cache.memory == "auto" and _has_graphs(drawing)
    if model is not None and is_measured:
        need = _step_bytes(drawing, memory, model, ops, progress)
        memory = plan_memory(drawing, weight_bytes, drawing.hardware.memory(), need)
    executor: Executor
    if model is None:
        executor = NullExecutor()
    else:
        progress("allocating pages")
        executor = _torch_executor(drawing, memory, model, ops)
        if not is_measured:
            prepare_kernels(drawing, executor, memory.room, progress)
        run_every_step(drawing, executor, memory.room, progress)
    if recipe.engine.executor.use == "late":
        executor = LateExecutor(executor, recipe.engine.executor.late_steps)
    text = text_model()
    predictor = _predictor(drawing, model)
    engine = Engine(_engine_parts(drawing, memory, executor, predictor, clock, text.eos_ids))
    info = _info(drawing, memory, text.eos_ids)
    engine.observers.on_start({"recipe": recipe.as_mapping(), "model": info.model})
    return Composed(engine, info, text, memory, drawing)


def _build_model(drawing: Drawing, ops: Ops) -> Model:
    recipe = drawing.recipe
    return drawing.family.build(
        drawing.checkpoint,
        ModelParts(
            quantizer=drawing.quantizer,
            ops=ops,
            dtype=recipe.model.dtype,
            device=drawing.hardware.device,
            deterministic=recipe.engine.deterministic,
            max_context=drawing.max_context,
            layers=(0, drawing.checkpoint.config.layers),
        ),
    )


def _has_graphs(drawing: Drawing) -> bool:
    return drawing.causal and Capability.GRAPHS in drawing.facts.capabilities


def _has_step_graphs(drawing: Drawing) -> bool:
    """Return whether only whole decode steps are worth recording, each when it is first needed."""
    return drawing.causal and Capability.STEP_GRAPHS in drawing.facts.capabilities


def _step_bytes(
    drawing: Drawing,
    memory: MemoryPlan,
    model: Model,
    ops: Ops,
    progress: Callable[[str], None],
) -> int:
    """Measure what the largest steps take beside weights and pages: once eager, once recorded.

    And once more where parts of steps are recorded beside each other.
    """
    hardware, scheduler = drawing.hardware, drawing.recipe.scheduler
    executor = _torch_executor(drawing, replace(memory, pages=1), model, ops)
    prepare_kernels(drawing, executor, memory.room, progress)
    progress("measuring a step")
    executor.graphs = executor.pieces = None
    hardware.peak()
    run_largest(
        executor, slots=scheduler.max_running, step_tokens=scheduler.step_tokens, room=memory.room
    )
    chosen: type[Scheduler] = scheduler.use.component.load()
    return (3 if chosen.cuts_steps else 2) * hardware.peak()


def _torch_executor(drawing: Drawing, memory: MemoryPlan, model: Model, ops: Ops) -> TorchExecutor:
    recipe, hardware = drawing.recipe, drawing.hardware
    slots = recipe.scheduler.max_running
    ratio = 1  # kernel pages in a manager page
    groups = [
        allocate_group(
            hardware, prefill, decode, plan.layers, (memory.pages + 1) * ratio, memory.page_tokens
        )
        for plan, (prefill, decode) in zip(drawing.groups, drawing.attention, strict=True)
    ]
    state = DeviceState(
        slots,
        len(groups),
        -(-memory.room // memory.page_tokens) + 1,
        ratio,
        drafts=0,
        device=hardware.device,
    )
    executor = TorchExecutor(
        TorchParts(
            model,
            groups,
            _sampler(drawing, model.facts.vocab),
            hardware,
            ops,
            state,
            poison=recipe.engine.poison,
        )
    )
    if recipe.engine.graphs and (_has_graphs(drawing) or _has_step_graphs(drawing)):
        if DecodeGraphs.allowed(executor):
            executor.graphs = DecodeGraphs(executor, slots, memory.room)
        if _has_graphs(drawing) and LayerGraphs.allowed(executor):
            executor.pieces = LayerGraphs(executor, recipe.scheduler.step_tokens)
    return executor


def _sampler(drawing: Drawing, vocab: int) -> Sampler:
    recipe = drawing.recipe
    processors = tuple(one.build() for one in recipe.sampling.processors)
    slots = recipe.scheduler.max_running + 1  # one stands for padding in recorded steps
    spec = SamplerSpec(vocab, slots, drawing.hardware.device, processors=processors)
    for one in processors:
        one.attach(spec)
    sampler: Sampler = recipe.sampling.use.build(spec)
    return sampler


def _predictor(drawing: Drawing, model: Model | None) -> StepTimePredictor | None:
    chosen = drawing.recipe.scheduler.predictor
    if chosen is None:
        return None
    config = drawing.checkpoint.config
    facts = model.facts if model is not None else None
    if facts is None:  # without a model, steps compute nothing
        name, layers = drawing.checkpoint.source, config.layers
        facts = ModelFacts(name, layers, config.hidden, config.vocab, 0, 0, drawing.max_context)
    predictor: StepTimePredictor = chosen.build(drawing.facts, facts)
    return predictor


def _engine_parts(
    drawing: Drawing,
    memory: MemoryPlan,
    executor: Executor,
    predictor: StepTimePredictor | None,
    clock: Clock,
    eos_ids: tuple[int, ...],
) -> EngineParts:
    recipe = drawing.recipe
    limits = SchedulerLimits(recipe.scheduler.step_tokens, recipe.scheduler.max_running)
    return EngineParts(
        executor=executor,
        cache=_cache(drawing, memory, executor, clock),
        scheduler=recipe.scheduler.use.build(limits),
        limits=limits,
        clock=clock,
        page_tokens=memory.page_tokens,
        room=_room(drawing, memory),
        causal=drawing.causal,
        positions=drawing.max_context,
        vocab=drawing.checkpoint.config.vocab,
        eos_ids=frozenset(eos_ids),
        depth=recipe.engine.depth,
        predictor=predictor,
        observers=[one.build() for one in recipe.observers],
        debug=recipe.engine.debug,
    )


def _cache(drawing: Drawing, memory: MemoryPlan, executor: Executor, clock: Clock) -> KVManager:
    recipe = drawing.recipe
    groups = tuple(
        GroupSpec(
            kind="sliding" if plan.spec.window else "full",
            pages=memory.pages,
            window=plan.spec.window,
            layers=plan.layers,
            page_bytes=size,
        )
        for plan, size in zip(drawing.groups, memory.group_page_bytes, strict=True)
    )
    spec = CacheSpec(
        page_tokens=memory.page_tokens,
        groups=groups,
        identity=_identity(drawing),
        prefix=recipe.cache.prefix,
        eviction=recipe.cache.eviction.build,
        now=clock.now,
        post=clock.post,
        tray=executor.tray if executor.moves_pages else None,
    )
    manager: KVManager = recipe.cache.use.build(spec)
    return manager


def _room(drawing: Drawing, memory: MemoryPlan) -> int:
    """Return the longest sequence; a text that is computed in one step has to fit into one."""
    return memory.room if drawing.causal else min(memory.room, drawing.recipe.scheduler.step_tokens)


def _identity(drawing: Drawing) -> bytes:
    """Digest what makes pages of two engines incompatible."""
    checkpoint, recipe = drawing.checkpoint, drawing.recipe
    layouts = [repr(decode.kv_layout()) for _, decode in drawing.attention]
    parts = (
        checkpoint.source,
        repr(checkpoint.config),
        str(checkpoint.random_seed),
        drawing.facts.kind,  # random weights are drawn on the device
        fingerprint(checkpoint.files).hex(),
        recipe.model.dtype,
        *(f"{one.name} {one.settings!r}" for one in (recipe.quant.use, recipe.quant.kv)),
        *layouts,
    )
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).digest()


def _info(drawing: Drawing, memory: MemoryPlan, eos_ids: tuple[int, ...]) -> EngineInfo:
    recipe = drawing.recipe
    chosen = dict(recipe.chosen())
    return EngineInfo(
        version=version("camshaft"),
        model=recipe.model.served_name,
        recipe=recipe.name,
        vocab=drawing.checkpoint.config.vocab,
        room=_room(drawing, memory),
        eos_ids=eos_ids,
        page_tokens=memory.page_tokens,
        pool_tokens=memory.pool_tokens,
        device=drawing.facts.name,
        components={path: one.name for path, one in chosen.items()},
        plugins={one.component.distribution: one.component.version for one in chosen.values()},
        weight_bytes=memory.weight_bytes,
        cache_bytes=memory.cache_bytes,
        page_bytes=memory.group_page_bytes,
        generates=drawing.causal,
    )
