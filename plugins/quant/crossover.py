"""From how many rows on bfloat16 products are faster than packed ones: measured once a machine."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import TYPE_CHECKING

import torch

from camshaft.native.build import cache_folder, library_path, processor_flags
from camshaft.native.linear import Form, linear, pack

from .components import GgufSettings
from .dense import prepack

if TYPE_CHECKING:
    from collections.abc import Callable

_ROWS = (8, 16, 32, 64, 128, 256)
_SIZE = 1024
_FASTER = 1.15  # what a copy of the weights must at least be worth


@cache
def rows_for_bfloat16() -> int | None:
    """Return up to how many rows packed weights are faster than a bfloat16 copy; None for always.

    Only matrix units (AMX) multiply bfloat16 faster than vectors multiply 8 bits, so there is
    nothing to measure without them.
    """
    if "amx_bf16" not in processor_flags():
        return None
    kept = cache_folder() / f"{library_path().stem}-crossover-{torch.get_num_threads()}.json"
    if kept.exists():
        return _checked(json.loads(kept.read_text(encoding="utf-8")))
    found = crossover(packed_seconds, bfloat16_seconds)
    kept.write_text(json.dumps({"rows": found, "torch": torch.__version__}), encoding="utf-8")
    return found


def crossover(packed: Callable[[int], float], bfloat16: Callable[[int], float]) -> int | None:
    """Return the most rows for which packed weights are still wanted, None for any number.

    Args:
        packed: Seconds for a number of rows.
        bfloat16: The same with a copy.
    """
    last = 4
    for rows in _ROWS:
        if packed(rows) > _FASTER * bfloat16(rows):
            return last
        last = rows
    return None


def _checked(kept: dict[str, object]) -> int | None:
    rows = kept.get("rows")
    return rows if isinstance(rows, int) else None


def packed_seconds(rows: int) -> float:
    """Return the seconds of one packed product of that many rows."""
    quants = torch.zeros(_SIZE, _SIZE, dtype=torch.uint8)
    ones = torch.ones(_SIZE, _SIZE // 32)
    weight = pack(Form(4, 32, is_wide=False), quants, ones, ones)
    x = torch.ones(rows, _SIZE, dtype=torch.bfloat16)
    out = torch.empty(rows, _SIZE, dtype=torch.bfloat16)
    many = GgufSettings().per_channel_rows
    return _fastest(lambda: linear(x, weight, None, out, many))


def bfloat16_seconds(rows: int) -> float:
    """Return the seconds of the same product with bfloat16 weights."""
    weight = torch.ones(_SIZE, _SIZE, dtype=torch.bfloat16)
    x = torch.ones(rows, _SIZE, dtype=torch.bfloat16)
    packed = prepack(weight)
    if packed is None:
        return _fastest(lambda: torch.nn.functional.linear(x, weight))
    return _fastest(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""))


def _fastest(run: Callable[[], object]) -> float:
    run()
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
