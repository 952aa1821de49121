"""Costs made by hand, for tests of what is built on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.plugins.lab.tuning.costs import LINEARS, Costs, Curve, Host
from camshaft.plugins.lab.tuning.operations import Operation

if TYPE_CHECKING:
    from camshaft.plugins.lab.tuning.costs import Link

FREE = Host(0.0, 0.0)


def curve(name: str, resource: int, points: dict[int, float]) -> Curve:
    """Return an operation that one resource alone limits, with its seconds by size."""

    def busy(seconds: float) -> tuple[float, float, float]:
        compute, memory, network = (seconds if resource == place else 0.0 for place in range(3))
        return compute, memory, network

    return Curve({size: Operation(name, one, busy(one)) for size, one in points.items()})


def costs(
    *,
    weights_s: float = 0.0,
    overlap: float = 1.0,
    layers: int = 10,
    host: Host = FREE,
    link: Link | None = None,
) -> Costs:
    """Return a model whose products take a second a token and its attention 100 a decode.

    Args:
        weights_s: That each linear takes on top, however few tokens it gets.
        overlap: See `pack`.
        layers: How many.
        host: Of launches.
        link: Between devices.
    """
    linear = {1: weights_s + 0.25, 2000: weights_s + 500.0}
    return Costs(
        layers=layers,
        length=100,
        linears={name: curve(name, 0, linear) for name in LINEARS},
        decode=curve("decode", 1, {1: 100.0, 10: 1000.0}),
        prefill=curve("prefill", 0, {1: 1.0, 10: 10.0}),
        ends=curve("ends", 1, {1: 1.0, 100: 1.0}),
        overlap=overlap,
        host=host,
        link=link,
    )
