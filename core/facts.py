"""Plain records of what a device is and can do; a recipe is checked against them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Capability(StrEnum):
    """What a component may need from a device. Closed: a new word is an edit here."""

    CUDA = "cuda"
    ROCM = "rocm"
    TRITON = "triton"
    GRAPHS = "graphs"
    STEP_GRAPHS = "step_graphs"
    STREAMS = "streams"
    FP8 = "fp8"
    AVX512 = "avx512"
    AMX = "amx"
    VIRTUAL_TIME = "virtual_time"


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What is known about one device.

    Attributes:
        kind: `cpu`, `cuda`, `rocm` or `simulated`.
        name: The vendor's name of it.
        memory_bytes: Memory that weights and pages may use.
        dtypes: Names of the dtypes it computes in.
        capabilities: What it offers of `Capability`.
        threads: Threads that a CPU component may use; 1 on accelerators.
        read_bytes_s: Measured or published read bandwidth, 0 if unknown.
        flops: FLOP/s by dtype name, where known.
        architecture: Compute capability such as `sm_90`, or the instruction set of a CPU.
    """

    kind: str
    name: str
    memory_bytes: int
    dtypes: frozenset[str]
    capabilities: frozenset[Capability] = frozenset()
    threads: int = 1
    read_bytes_s: float = 0.0
    flops: dict[str, float] = field(default_factory=dict)
    architecture: str = ""
