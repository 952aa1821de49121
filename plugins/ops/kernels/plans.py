"""How linears of few rows are cut into programs: the one place of these constants.

What the plans weigh: enough programs for every multiprocessor, enough bytes on their way in each
(about 32 KiB hide the latency of an H200's memory), tiles that lie in registers, and, with more
rows, how often the same activations are read again.
"""

from __future__ import annotations

from typing import NamedTuple

import triton


class OneRow(NamedTuple):
    """How one row is multiplied.

    Attributes:
        outputs: Of a program, of each of gate and up; a power of two.
        inputs: Columns of a tile; a power of two, 8 at least.
        warps: Of a program.
        ahead: Launched early, it fetches weights before it waits for the row.
    """

    outputs: int
    inputs: int
    warps: int
    ahead: bool = True


class FewRows(NamedTuple):
    """How 2 to 16 rows are multiplied.

    Attributes:
        outputs: Of a program, of each of gate and up; a power of two, 8 at least.
        inputs: Columns of a warp's part of a tile; a power of two, 16 at least.
        warps: Of a program; a power of two.
    """

    outputs: int
    inputs: int
    warps: int


# (outputs without the gates, inputs, is gated), as measured on an H200
_ONE_ROW = {
    (4096, 1024, False): OneRow(4, 1024, 4),
    (1024, 2048, False): OneRow(8, 2048, 8),
    (3072, 1024, True): OneRow(4, 1024, 4),
    (1024, 3072, False): OneRow(2, 2048, 4),
    (151936, 1024, False): OneRow(4, 1024, 2, ahead=False),
    (6144, 4096, False): OneRow(4, 4096, 4),
    (4096, 4096, False): OneRow(4, 1024, 2),
    (14336, 4096, True): OneRow(2, 4096, 8, ahead=False),
    (4096, 14336, False): OneRow(8, 2048, 8),
    (128256, 4096, False): OneRow(8, 2048, 8, ahead=False),
}
_FEW_ROWS = {
    (4096, 1024, False): FewRows(16, 256, 4),
    (1024, 2048, False): FewRows(8, 256, 4),
    (3072, 1024, True): FewRows(8, 256, 4),
    (1024, 3072, False): FewRows(8, 128, 8),
}

_WEIGHTS_OF_A_PROGRAM = 8192
_PROGRAMS_AT_ONCE = 2048
"""More do not fit on the device together; those that start later find the row there."""
_FEW_ROWS_BYTES = 16 * 2**20
"""Larger weights are multiplied as fast by the vendor's library."""


def plan_one_row(outputs: int, inputs: int, *, is_gated: bool) -> OneRow:
    """Return the plan for one row; outputs are counted without the gates."""
    measured = _ONE_ROW.get((outputs, inputs, is_gated))
    if measured is not None:
        return measured
    columns = max(8, min(2048, triton.next_power_of_2(inputs)))
    rows = max(1, _WEIGHTS_OF_A_PROGRAM // columns // (2 if is_gated else 1))
    rows = min(rows, triton.next_power_of_2(max(1, outputs // 256)))
    return OneRow(rows, columns, 4, ahead=outputs <= rows * _PROGRAMS_AT_ONCE)


def plan_few_rows(outputs: int, inputs: int, *, is_gated: bool) -> FewRows | None:
    """Return the plan for 2 to 16 rows, or None where torch's linear is as fast.

    Outputs are counted without the gates.
    """
    measured = _FEW_ROWS.get((outputs, inputs, is_gated))
    if measured is not None:
        return measured
    if 2 * outputs * inputs * (1 + is_gated) > _FEW_ROWS_BYTES or not (is_gated or outputs <= 2048):
        return None
    columns = max(16, min(128, triton.next_power_of_2(inputs) // 8))
    return FewRows(8, columns, 4 if is_gated else 8)
