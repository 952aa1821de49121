"""What `engine tune` says: one table for the step, one for its sizes, or the same as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .operations import RESOURCES, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .costs import Mix
    from .measuring import Survey
    from .search import Tuned
    from .steps import Load

_SOME = 4  # splits to list


@dataclass(frozen=True, slots=True)
class Report:
    """A search.

    Attributes:
        title: Recipe and device.
        load: The step that it was about.
        survey: What was measured.
        tuned: What came out.
    """

    title: str
    load: Load
    survey: Survey
    tuned: Tuned

    def as_mapping(self) -> dict[str, Any]:
        """Return plain data for JSON; times in milliseconds."""
        survey, tuned, load = self.survey, self.tuned, self.load
        costs, best = survey.costs, tuned.best
        parts = best.cut(load.mix, load.length)
        return {
            "tune": self.title,
            "decodes": load.mix.decodes,
            "context": load.context,
            "prompts": load.mix.prompts,
            "prompt_tokens": load.length,
            "tokens": load.mix.tokens(load.length),
            "ranks": 1 if costs.link is None else costs.link.ranks,
            "link_bytes_s": None if costs.link is None else costs.link.bytes_s,
            "rates": {"bytes_s": survey.rates.bytes_s, "gemm_flop_s": survey.rates.gemm_flop_s},
            "overlap": round(costs.overlap, 4),
            "launch_ms": {
                "decode": _ms(costs.host.decode_s), "mixed": _ms(costs.host.mixed_s),
            },
            "measured_ms": _ms(survey.largest.seconds),
            "operations": self._operations(),
            "one batch": self._step([load.mix]),
            "split": {
                "by": best.by,
                "shares": list(best.shares),
                "parts": [list(one) for one in parts],
                **self._step(parts),
            },
            "tried": [{"split": str(one), "ms": _ms(seconds)} for one, seconds in tuned.tried],
            "steps": [
                {
                    "decodes": one.mix.decodes,
                    "prompts": one.mix.prompts,
                    "tokens": one.tokens,
                    "one batch ms": _ms(one.whole_s),
                    "split ms": _ms(one.split_s),
                    "gain": round(one.gain, 4),
                }
                for one in tuned.steps
            ],
            "minimum_tokens": tuned.minimum_tokens,
        }  # fmt: skip

    def _operations(self) -> list[dict[str, Any]]:
        """Return the operations of the whole step, all layers together."""
        costs = self.survey.costs
        layer = costs.layer(self.load.mix)
        every = [
            joined(name, *(one for one in layer if one.name == name))
            for name in dict.fromkeys(one.name for one in layer)
        ]
        ends = costs.ends.at(self.load.mix.requests)
        return [
            {
                "operation": one.name,
                "ms": _ms(one.seconds * times),
                **{
                    name: round(one.use(place), 4) for place, name in enumerate(RESOURCES)
                },
                "bound": RESOURCES[one.bound],
            }
            for one, times in [*((one, costs.layers) for one in every), (ends, 1)]
        ]  # fmt: skip

    def _step(self, parts: Sequence[Mix]) -> dict[str, Any]:
        costs = self.survey.costs
        packing = costs.step(parts)
        busy = zip(RESOURCES, packing.busy, strict=True)
        return {
            "ms": _ms(costs.seconds(parts)),
            "device_ms": _ms(packing.seconds),
            "host_ms": _ms(costs.host.seconds(parts)),
            "busy_ms": {name: _ms(seconds) for name, seconds in busy},
        }


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def table(report: Report) -> str:
    """Return the report for people."""
    data = report.as_mapping()
    whole, split = data["one batch"], data["split"]
    rates, launch = data["rates"], data["launch_ms"]
    best = str(report.tuned.best)
    lines = [
        data["tune"],
        f"step of {data['tokens']:,} tokens: {data['decodes']} requests that decode behind "
        f"{data['context']:,} tokens, {data['prompts']} prompts of {data['prompt_tokens']:,}",
        f"measured: {rates['bytes_s'] / 1e9:,.1f} GB/s, {rates['gemm_flop_s'] / 1e12:,.2f} "
        f"TFLOP/s; of two operations side by side {data['overlap']:.0%} of the shorter one is "
        "hidden",
        f"launching a step takes {launch['mixed']:.2f} ms, if all decode {launch['decode']:.2f} ms",
    ]
    if data["ranks"] > 1:
        lines.append(
            f"this is one of {data['ranks']} devices, each of which sends "
            f"{data['link_bytes_s'] / 1e9:g} GB/s"
        )
    lines += ["", *_operation_lines(data), "", *_step_lines(whole, split, best), ""]
    lines += _tried_lines(data)
    return "\n".join([*lines, "", *_size_lines(data, best), "", verdict(report.tuned)])


def _operation_lines(data: dict[str, Any]) -> list[str]:
    heads = "".join(f"{name:>10}" for name in RESOURCES)
    lines = [f"{'operation':14}{'ms':>10}{heads}  bound by"]
    for one in data["operations"]:
        uses = "".join(f"{one[name]:10.0%}" for name in RESOURCES)
        lines.append(f"{one['operation']:14}{one['ms']:10.3f}{uses}  {one['bound']}")
    lines.append(f"{'measured step':14}{data['measured_ms']:10.3f}")
    return lines


def _step_lines(whole: dict[str, Any], split: dict[str, Any], best: str) -> list[str]:
    width = max(14, len(best) + 2)
    rows = [("step", "ms"), ("device", "device_ms"), ("host", "host_ms")]
    pairs = [(name, whole[key], split[key]) for name, key in rows]
    busy = whole["busy_ms"], split["busy_ms"]
    pairs += [(f"{name} busy", busy[0][name], busy[1][name]) for name in RESOURCES]
    lines = [f"{'predicted ms':18}{'one batch':>14}{best:>{width}}"]
    return [*lines, *(f"{name:18}{one:14.3f}{two:{width}.3f}" for name, one, two in pairs)]


def _tried_lines(data: dict[str, Any]) -> list[str]:
    tried = data["tried"]
    some = "; ".join(f"{one['split']} {one['ms']:.3f}" for one in tried[:_SOME])
    return [f"best of {len(tried)} splits, ms: {some}; worst {tried[-1]['ms']:.3f}"]


def _size_lines(data: dict[str, Any], best: str) -> list[str]:
    width = max(12, len(best) + 2)
    lines = [
        f"{'decodes':>8}{'prompts':>9}{'tokens':>9}{'one batch ms':>14}{best:>{width}}{'gain':>8}"
    ]
    lines += [
        f"{one['decodes']:8}{one['prompts']:9}{one['tokens']:9,}{one['one batch ms']:14.3f}"
        f"{one['split ms']:{width}.3f}{one['gain']:8.1%}"
        for one in data["steps"]
    ]
    return lines


def verdict(tuned: Tuned) -> str:
    """Return what to do, in a sentence."""
    if tuned.minimum_tokens is None:
        return (
            f"Nothing is to be gained: the best split changes this step by "
            f"{-tuned.steps[-1].gain:+.1%}."
        )
    return (
        f"Split {tuned.best} from {tuned.minimum_tokens:,} tokens on: this step is predicted to "
        f"take {-tuned.steps[-1].gain:+.1%}."
    )
