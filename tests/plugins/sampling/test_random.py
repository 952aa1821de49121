from __future__ import annotations

import numpy as np
import torch

from camshaft.plugins.sampling.random import stream_keys, uniforms

WORD = 2**64


def mix(state: int) -> int:
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % WORD
    state = (state ^ state >> 27) * 0x94D049BB133111EB % WORD
    return state ^ state >> 31


def keys(*seeds: int) -> torch.Tensor:
    halves = np.array(seeds, dtype=np.uint64).view(np.int32).reshape(-1, 2)
    return torch.from_numpy(stream_keys(halves))


def test_the_key_of_seed_0_is_splitmix64s_first_number() -> None:
    assert int(keys(0)[0]) % WORD == 0xE220A8397B1DCDAF


def test_numbers_are_splitmix64_in_whole_numbers() -> None:
    seeds = (0, 1, 2**63, WORD - 1)
    for index in (0, 1, 77, 2**40):
        states = [mix((seed + 0x9E3779B97F4A7C15) % WORD) for seed in seeds]
        words = [mix((state + (index + 1) * 0x9E3779B97F4A7C15) % WORD) for state in states]
        found = uniforms(keys(*seeds), torch.full((4,), index))
        assert found.tolist() == [(word >> 11) / 2**53 for word in words]


def test_numbers_are_uniform_over_seeds_and_over_indices() -> None:
    over_seeds = uniforms(keys(*range(16000)), torch.zeros(16000, dtype=torch.int64))
    over_indices = uniforms(keys(7).expand(16000), torch.arange(16000))
    for numbers in (over_seeds, over_indices):
        counts = torch.histc(numbers.float(), 16, 0, 1)
        assert float(((counts - 1000) ** 2 / 1000).sum()) < 44  # chi-square, once in 10,000
        pairs = torch.histc(numbers[:-1].mul(4).floor().mul(4) + numbers[1:].mul(4).floor(), 16)
        assert float(((pairs - 1000) ** 2 / 1000).sum()) < 44
