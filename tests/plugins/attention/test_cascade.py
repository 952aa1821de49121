from __future__ import annotations

import numpy as np
import pytest
import torch

from camshaft.contracts.attention import SharedPrefixes
from camshaft.plugins.attention.cascade import Cascade, Work, work_of

Reads = dict[int, list[tuple[int, int, int]]]
"""By request: (row of the results, first key, end of keys) of each piece that it takes in."""


def shared_of(group: list[int], tokens: list[int]) -> SharedPrefixes:
    return SharedPrefixes(np.array(group, dtype=np.int32), np.array(tokens, dtype=np.int32))


def computed(work: Work) -> Reads:
    """Replay what the cascade kernel writes."""
    reads: Reads = {}
    for first, size, low, high, row in work.items.tolist():
        for place, request in enumerate(work.members[first : first + size].tolist()):
            reads.setdefault(request, []).append((row + place, low, high))
    return reads


def test_two_tiles_are_cut_evenly_over_three_programs() -> None:
    """Five requests on 128 keys in tiles of four: 2 tiles of 4 units are 8 units for 3 programs."""
    work = work_of(shared_of([0, -1, 0, 0, 0, 0], [128]), tile=4, keys=32, programs=3)
    assert work.members.tolist() == [0, 2, 3, 4, 5]
    assert work.items.tolist() == [
        [0, 4, 0, 64, 0],
        [0, 4, 64, 128, 4],
        [4, 1, 0, 32, 8],
        [4, 1, 32, 128, 9],
    ]
    assert work.runs.tolist() == [0, 1, 3, 4]
    assert work.requests.tolist() == [
        [128, 0, 4, 2],
        [0, 0, 0, 0],
        [128, 1, 4, 2],
        [128, 2, 4, 2],
        [128, 3, 4, 2],
        [128, 8, 1, 2],
    ]


def test_nobody_shares() -> None:
    work = work_of(shared_of([-1, -1], []), tile=4, keys=32, programs=3)
    assert work.runs.tolist() == [0, 0, 0, 0]
    assert not work.requests.any()


def test_a_prefix_shorter_than_a_tile_of_keys_is_left_to_its_requests() -> None:
    work = work_of(shared_of([0, 0, 1, 1], [31, 70]), tile=4, keys=32, programs=2)
    assert work.requests[:, 0].tolist() == [0, 0, 64, 64]
    assert work.requests[:, 3].tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize("seed", range(10))
def test_every_request_finds_its_whole_prefix_once(seed: int) -> None:
    chance = np.random.default_rng(seed)
    groups = int(chance.integers(1, 6))
    group = chance.integers(-1, groups, 40)
    tokens = chance.integers(0, 900, groups)
    tile, keys, programs = 7, 32, int(chance.integers(1, 9))
    work = work_of(shared_of(group.tolist(), tokens.tolist()), tile, keys, programs)
    reads = computed(work)
    for request, (shared, at, stride, pieces) in enumerate(work.requests.tolist()):
        own = int(tokens[group[request]]) // keys * keys if group[request] >= 0 else 0
        assert shared == own
        rows = [at + piece * stride for piece in range(pieces)]
        found = sorted(reads.get(request, []), key=lambda read: read[1])
        assert [row for row, _, _ in found] == rows
        edges = [0, *(high for _, _, high in found)]
        assert edges[:-1] == [low for _, low, _ in found]
        assert edges[-1] == own
    lengths = [work.items[a:b, 3] - work.items[a:b, 2] for a, b in pairs(work.runs)]
    units = [int(one.sum()) // keys for one in lengths]
    assert max(units) - min(units) <= 1


def pairs(runs: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(runs[:-1].tolist(), runs[1:].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(10))
def test_the_buffers_hold_any_work(seed: int) -> None:
    chance = np.random.default_rng(seed)
    requests = 24
    cascade = Cascade(requests, tile=5, keys=16, programs=6, device=torch.device("cpu"))
    group = np.unique(chance.integers(0, requests, requests), return_inverse=True)[1]
    shared = shared_of(group.tolist(), chance.integers(16, 600, requests).tolist())
    cascade.load(shared)
    work = work_of(shared, 5, 16, 6)
    assert cascade.items[: work.items.size].tolist() == work.items.ravel().tolist()
    assert cascade.requests.view(-1, 4).tolist() == work.requests.tolist()
    assert work.items[-1, 4] + work.items[-1, 1] <= cascade.rows


def test_new_work_leaves_nothing_of_the_old() -> None:
    cascade = Cascade(4, tile=4, keys=16, programs=2, device=torch.device("cpu"))
    cascade.load(shared_of([0, 0, 0, 0], [64]))
    cascade.load(shared_of([-1, 0, 0], [32]))
    assert cascade.requests.view(-1, 4)[:, 0].tolist() == [0, 32, 32, 0]
