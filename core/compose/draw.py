"""The drawing of an engine: every part chosen and checked against the others, no weight read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from camshaft.checkpoint import Checkpoint, open_checkpoint, random_checkpoint

from ..errors import CamshaftError, Fault, PluginError, RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..component import Chosen
    from ..contracts.attention import AttentionBackend
    from ..contracts.cache import GroupKind, KVManager
    from ..contracts.hardware import HardwareBackend
    from ..contracts.kv_quant import KVQuant
    from ..contracts.model import GroupPlan, ModelFamily
    from ..contracts.ops import OpsProvider
    from ..contracts.quant import Quantizer
    from ..contracts.scheduler import Scheduler
    from ..facts import DeviceFacts
    from ..recipe import Recipe


@dataclass(frozen=True, slots=True)
class Drawing:
    """Parts that fit together.

    Attributes:
        recipe: What was asked for.
        checkpoint: Opened, not loaded.
        family: Builds the model.
        hardware: Not yet opened.
        facts: Of the hardware.
        quantizer: Of the weights.
        groups: KV groups of the model.
        attention: (prefill, decode) of each group; the same object where the recipe names one.
        max_context: Longest sequence that the model may see.
    """

    recipe: Recipe
    checkpoint: Checkpoint
    family: ModelFamily
    hardware: HardwareBackend
    facts: DeviceFacts
    quantizer: Quantizer
    groups: Sequence[GroupPlan]
    attention: Sequence[tuple[AttentionBackend, AttentionBackend]]
    max_context: int

    @property
    def causal(self) -> bool:
        """Whether a token depends on earlier ones only."""
        return all(group.spec.causal for group in self.groups)


def draw(recipe: Recipe) -> Drawing:
    """Choose and check every part.

    Raises:
        RecipeError: Parts do not fit; every misfit, with the line it comes from.
        CheckpointError: The model is missing or damaged.
    """
    recipe.check_implementations()
    checkpoint = _open(recipe)
    hardware: HardwareBackend = recipe.hardware.use.build()
    facts = hardware.facts()
    faults = list(_reserved(recipe))
    faults += _capabilities(recipe, facts)
    faults += _ops_faults(recipe, facts)
    faults += _scheduler_faults(recipe)
    family = _family(recipe, checkpoint, faults)
    quantizer: Quantizer = recipe.quant.use.build()
    faults += _quant_faults(recipe, checkpoint, quantizer, facts)
    max_context = _max_context(recipe, checkpoint, faults)
    if family is None:
        raise RecipeError(faults)
    against = family.conflicts(recipe.quant.use.name, deterministic=recipe.engine.deterministic)
    faults += [Fault(recipe.origin("model"), f"model: {reason}") for reason in against]
    groups = _groups(recipe, checkpoint, family, max_context)
    faults += _cache_faults(recipe, groups)
    if not all(group.spec.causal for group in groups):
        faults += _whole_text_faults(recipe)
    attention = list(_attention(recipe, groups, facts, faults))
    if faults:
        raise RecipeError(dict.fromkeys(faults))
    return Drawing(
        recipe, checkpoint, family, hardware, facts, quantizer, groups, attention, max_context
    )


def _open(recipe: Recipe) -> Checkpoint:
    model = recipe.model
    if model.config is not None:
        return random_checkpoint(model.config, model.seed)
    assert model.source is not None
    return open_checkpoint(model.source, seed=model.seed)


def _reserved(recipe: Recipe) -> Iterator[Fault]:
    for path, chosen in (
        ("sampling.speculator", recipe.sampling.speculator),
        ("sampling.grammar", recipe.sampling.grammar),
    ):
        if chosen is not None:
            yield Fault(recipe.origin(path), f"{path}: this version does not run one yet")


def _capabilities(recipe: Recipe, facts: DeviceFacts) -> Iterator[Fault]:
    for path, chosen in recipe.chosen():
        missing = sorted(chosen.component.needs - set(facts.capabilities))
        if missing:
            yield Fault(
                recipe.origin(path),
                f"{path}: '{chosen.name}' needs {', '.join(missing)}, which {facts.name} "
                f"({facts.kind}) does not have",
            )
    dtype = recipe.model.dtype
    if dtype not in facts.dtypes:
        known = ", ".join(sorted(facts.dtypes))
        yield Fault(
            recipe.origin("model.dtype"),
            f"model.dtype: {facts.kind} does not compute in {dtype}; it does in {known}",
        )


def _ops_faults(recipe: Recipe, facts: DeviceFacts) -> Iterator[Fault]:
    """A provider of which nothing fits would have no effect."""
    for index, chosen in enumerate(recipe.ops):
        provider: OpsProvider = chosen.build()
        against = [one.supports(facts, recipe.model.dtype) for one in provider.implementations()]
        if all(against):
            reasons = "; ".join(dict.fromkeys(reason for one in against for reason in one))
            yield Fault(
                recipe.origin(f"ops.{index}"),
                f"ops: nothing of '{chosen.name}' runs on {facts.name} in {recipe.model.dtype}: "
                f"{reasons}",
            )


def _family(recipe: Recipe, checkpoint: Checkpoint, faults: list[Fault]) -> ModelFamily | None:
    use = recipe.model.use
    if use != "auto":
        family: ModelFamily = use.build()
        reasons = family.supports(checkpoint.config)
        faults += [
            Fault(recipe.origin("model.use"), f"model: '{use.name}': {reason}")
            for reason in reasons
        ]
        return None if reasons else family
    against = []
    for component in recipe.registry.components("model"):
        try:
            chosen: ModelFamily = component.load()(component.settings())
        except (PluginError, CamshaftError) as error:
            against.append(f"{component.name}: {error}")
            continue
        reasons = chosen.supports(checkpoint.config)
        if not reasons:
            return chosen
        against.append(f"{component.name}: {'; '.join(reasons)}")
    faults.append(
        Fault(
            recipe.origin("model"),
            f"model: nothing installed runs '{checkpoint.config.architecture}' "
            f"({' | '.join(against) or 'there is no model component'})",
        )
    )
    return None


def _quant_faults(
    recipe: Recipe, checkpoint: Checkpoint, quantizer: Quantizer, facts: DeviceFacts
) -> Iterator[Fault]:
    for reason in checkpoint.refusals(
        lambda formats: quantizer.supports(formats, recipe.model.dtype, facts)
    ):
        yield Fault(recipe.origin("quant"), f"quant: '{recipe.quant.use.name}': {reason}")


def _max_context(recipe: Recipe, checkpoint: Checkpoint, faults: list[Fault]) -> int:
    limit, wanted = checkpoint.config.context, recipe.model.max_context
    if wanted == "auto":
        return limit
    if wanted > limit:
        faults.append(
            Fault(
                recipe.origin("model.max_context"),
                f"model.max_context: {wanted} is more than the {limit} that the model was made for",
            )
        )
    return wanted


def _groups(
    recipe: Recipe, checkpoint: Checkpoint, family: ModelFamily, max_context: int
) -> Sequence[GroupPlan]:
    plans = family.groups(checkpoint.config, recipe.cache.page_tokens, recipe.model.dtype)
    deterministic = recipe.engine.deterministic
    return [
        plan._replace(spec=replace(plan.spec, max_context=max_context, deterministic=deterministic))
        for plan in plans
    ]


def _cache_faults(recipe: Recipe, groups: Sequence[GroupPlan]) -> Iterator[Fault]:
    kinds: set[GroupKind] = {"sliding" if plan.spec.window else "full" for plan in groups}
    for path, chosen in recipe.chosen():  # those inside others, too
        if chosen.component.kind != "cache":
            continue
        manager: type[KVManager] = chosen.component.load()
        for reason in manager.supports(recipe.cache.page_tokens, kinds):
            yield Fault(recipe.origin(path), f"cache: '{chosen.name}': {reason}")


def _whole_text_faults(recipe: Recipe) -> Iterator[Fault]:
    """What a model cannot have whose tokens depend on those behind them."""
    if recipe.cache.prefix:
        yield Fault(
            recipe.origin("cache.prefix"),
            "cache.prefix: texts of this model share no pages, as each token depends on those "
            "behind it; say `prefix: false`",
        )
    if recipe.engine.warm_up in ("kernels", "graphs"):
        yield Fault(
            recipe.origin("engine.warm_up"),
            "engine.warm_up: it runs steps that choose tokens, which this model does not",
        )


def _scheduler_faults(recipe: Recipe) -> Iterator[Fault]:
    section = recipe.scheduler
    scheduler: type[Scheduler] = section.use.component.load()
    predicts = section.predictor is not None
    cache: type[KVManager] = recipe.cache.use.component.load()
    settings, no_swap = section.use.settings, cache.no_swap
    for reason in scheduler.supports(settings, predicts=predicts, no_swap=no_swap):
        yield Fault(recipe.origin("scheduler"), f"scheduler: '{section.use.name}': {reason}")


def _attention(
    recipe: Recipe, groups: Sequence[GroupPlan], facts: DeviceFacts, faults: list[Fault]
) -> Iterator[tuple[AttentionBackend, AttentionBackend]]:
    kv_quant: KVQuant = recipe.quant.kv.build()
    section = recipe.attention
    roles: dict[str, Chosen] = {"prefill": section.prefill, "decode": section.decode}
    if recipe.engine.deterministic and section.prefill != section.decode:
        faults.append(
            Fault(
                recipe.origin("attention"),
                f"attention: '{section.prefill.name}' and '{section.decode.name}' round "
                "differently, and engine.deterministic needs the same for prompts and decoding",
            )
        )
    for group in groups:
        fits = True
        for role, chosen in roles.items():
            backend: type[AttentionBackend] = chosen.component.load()
            reasons = backend.supports(group.spec, facts)
            fits = fits and not reasons
            faults += [
                Fault(
                    recipe.origin(f"attention.{role}"),
                    f"attention: '{chosen.name}' cannot serve layers {_span(group.layers)}: "
                    f"{reason}",
                )
                for reason in reasons
            ]
        if not fits:
            continue
        prefill = section.prefill.build(group.spec, kv_quant)
        decode = prefill
        if section.prefill != section.decode:
            decode = section.decode.build(group.spec, kv_quant)
            if prefill.kv_layout() != decode.kv_layout():
                faults.append(
                    Fault(
                        recipe.origin("attention"),
                        f"attention: '{section.prefill.name}' and '{section.decode.name}' lay out "
                        "pages differently",
                    )
                )
        yield prefill, decode


def _span(layers: Sequence[int]) -> str:
    return f"{layers[0]}" if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
