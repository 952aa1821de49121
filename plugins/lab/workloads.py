"""The workloads of `engine bench`: fixed requests from fixed seeds, greedy, EOS ignored."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.errors import CamshaftError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a workload: prompt ids, and how many tokens to generate."""

    prompt: tuple[int, ...]
    outputs: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are all there at the start.

    Attributes:
        summary: One line.
        make: Returns the jobs, for a source of chance and a limit of token ids.
    """

    summary: str
    make: Callable[[random.Random, int], list[Job]]


def _ids(chance: random.Random, count: int, vocab: int) -> tuple[int, ...]:
    return tuple(chance.randrange(10, min(vocab, 100_000)) for _ in range(count))


def _equal(requests: int, prompt: int, outputs: int) -> Callable[[random.Random, int], list[Job]]:
    def make(chance: random.Random, vocab: int) -> list[Job]:
        return [Job(_ids(chance, prompt, vocab), outputs) for _ in range(requests)]

    return make


def _mixed(
    requests: int, prompts: tuple[int, int], outputs: tuple[int, int]
) -> Callable[[random.Random, int], list[Job]]:
    def make(chance: random.Random, vocab: int) -> list[Job]:
        return [
            Job(_ids(chance, chance.randint(*prompts), vocab), chance.randint(*outputs))
            for _ in range(requests)
        ]

    return make


def _shared(
    requests: int, prefix: int, own: int, outputs: int
) -> Callable[[random.Random, int], list[Job]]:
    def make(chance: random.Random, vocab: int) -> list[Job]:
        common = _ids(chance, prefix, vocab)
        return [Job(common + _ids(chance, own, vocab), outputs) for _ in range(requests)]

    return make


WORKLOADS: dict[str, Workload] = {
    "cpu-single": Workload("one stream: 128 in, 128 out", _equal(1, 128, 128)),
    "cpu-batch8": Workload("8 streams: 128 in, 128 out", _equal(8, 128, 128)),
    "cpu-batch32": Workload("32 streams: 128 in, 128 out", _equal(32, 128, 128)),
    "cpu-prompt512": Workload("one prompt of 512 tokens, 1 out", _equal(1, 512, 1)),
    "cpu-prompt1500": Workload("one prompt of 1,500 tokens, 1 out", _equal(1, 1500, 1)),
    "single": Workload("one stream: 128 in, 512 out", _equal(1, 128, 512)),
    "mixed": Workload("256 requests: 100-1,024 in and out", _mixed(256, (100, 1024), (100, 1024))),
    "prefill": Workload("32 prompts of 4,096 tokens, 1 out", _equal(32, 4096, 1)),
    "shared": Workload("256 requests over a prefix of 2,048", _shared(256, 2048, 128, 128)),
    "long": Workload("16 prompts of 16,384 tokens, 256 out", _equal(16, 16384, 256)),
    "burst": Workload("1,024 requests: 64-256 in and out", _mixed(1024, (64, 256), (64, 256))),
}


def jobs(name: str, vocab: int, seed: int = 0) -> list[Job]:
    """Return the requests of a workload.

    Args:
        name: Of `WORKLOADS`.
        vocab: Token ids are below it.
        seed: Of the requests.

    Raises:
        CamshaftError: Nothing is called `name`.
    """
    return find_workload(name).make(random.Random(seed), vocab)


def find_workload(name: str) -> Workload:
    """Return a workload by its name. Raises as `jobs`."""
    if name not in WORKLOADS:
        hint = did_you_mean(name, WORKLOADS) or ";"
        raise CamshaftError(f"no workload is called '{name}'{hint} known: {', '.join(WORKLOADS)}.")
    return WORKLOADS[name]
