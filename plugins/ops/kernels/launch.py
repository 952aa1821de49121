"""What the launches of this folder share."""

from __future__ import annotations

from typing import Any

ELEMENTS_PER_THREAD = 8
"""Sixteen bytes of a half precision: the widest load."""


def options(elements: int, most_warps: int, *, early: bool) -> dict[str, Any]:
    """Return launch options of a program that covers `elements` of each operand.

    Args:
        elements: A power of two.
        most_warps: More threads than this make a reduction slower than longer loads do.
        early: Ask for programmatic dependent launch; the kernel must then wait for its
            predecessor before it touches what others write, and before it writes.
    """
    warps = max(1, min(most_warps, elements // (32 * ELEMENTS_PER_THREAD)))
    return {"num_warps": warps, "launch_pdl": True} if early else {"num_warps": warps}
