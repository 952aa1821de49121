"""The requests of each workload: how many, how long, and the same ones each time."""

from __future__ import annotations

import pytest

from camshaft.errors import CamshaftError
from camshaft.plugins.lab.workloads import WORKLOADS, jobs

EQUAL = {
    "cpu-single": (1, 128, 128),
    "cpu-batch8": (8, 128, 128),
    "cpu-batch32": (32, 128, 128),
    "cpu-prompt512": (1, 512, 1),
    "cpu-prompt1500": (1, 1500, 1),
    "single": (1, 128, 512),
    "prefill": (32, 4096, 1),
    "shared": (256, 2048 + 128, 128),
    "long": (16, 16_384, 256),
}
VARIED = {"mixed": (256, 100, 1024), "burst": (1024, 64, 256)}


def test_all_workloads_are_tested_here() -> None:
    assert set(WORKLOADS) == {*EQUAL, *VARIED}


@pytest.mark.parametrize(("name", "counts"), EQUAL.items(), ids=EQUAL)
def test_requests_of_one_size(name: str, counts: tuple[int, int, int]) -> None:
    found = jobs(name, vocab=320)
    requests, prompt, outputs = counts
    assert len(found) == requests
    assert {(len(job.prompt), job.outputs) for job in found} == {(prompt, outputs)}


@pytest.mark.parametrize(("name", "counts"), VARIED.items(), ids=VARIED)
def test_requests_of_sizes_in_a_range(name: str, counts: tuple[int, int, int]) -> None:
    found = jobs(name, vocab=320)
    requests, least, most = counts
    sizes = {len(job.prompt) for job in found} | {job.outputs for job in found}
    assert len(found) == requests
    assert (least <= min(sizes), max(sizes) <= most) == (True, True)
    assert len(sizes) > 50


@pytest.mark.parametrize("name", ["cpu-batch8", "burst", "shared"])
def test_a_seed_gives_the_same_requests_again_and_another_seed_others(name: str) -> None:
    assert jobs(name, 320, seed=1) == jobs(name, 320, seed=1) != jobs(name, 320, seed=2)


def test_a_shared_prefix_is_shared_to_the_token_and_what_follows_is_not() -> None:
    found = jobs("shared", vocab=50_000)
    assert len({job.prompt[:2048] for job in found}) == 1
    assert len({job.prompt[2048] for job in found}) > 200


def test_ids_are_in_the_vocabulary_and_none_is_a_control_token() -> None:
    ids = {id for job in jobs("cpu-batch32", vocab=20) for id in job.prompt}
    assert ids == set(range(10, 20))


def test_an_unknown_name_is_told_the_nearest_one() -> None:
    with pytest.raises(CamshaftError, match="did you mean 'cpu-single'"):
        jobs("cpu-singel", 320)
