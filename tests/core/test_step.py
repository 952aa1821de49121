from __future__ import annotations

import numpy as np
import pytest

from camshaft.contracts.cache import PageCopy, TableWrite
from camshaft.contracts.scheduler import Rows
from camshaft.loop.batch import Batch
from camshaft.loop.columns import Share
from camshaft.loop.pack import pack_step
from camshaft.loop.state import RequestState
from camshaft.step import FROM_DEVICE, Admissions, Ragged, Step, int32
from camshaft.testing.engines import make_request


def example() -> Step:
    one = RequestState(
        1,
        make_request("a", [11, 12, 13], logit_bias={5: -1.5}, bad_words=((3, 4),)),
        frozenset({2}),
        100,
        seed=2**64 - 3,
    )
    two = RequestState(2, make_request("b", [21]), frozenset(), 100, seed=7)
    one.slot, two.slot = 4, 1
    two.computed, two.known = 1, 2
    batch = Batch(9, [Share(one, 0, 3, 0, Rows.LAST), Share(two, 1, 1, 0, Rows.LAST)], [one])
    batch.writes = [(one, TableWrite(0, 0, [8, 9])), (two, TableWrite(1, 3, [2]))]
    batch.copies = [PageCopy(0, 5, 6)]
    batch.arrange()
    batch.nano_batch = int32([1, 0])
    return pack_step(batch)


def test_requests_with_one_token_come_first_and_unknown_tokens_are_the_devices() -> None:
    step = example()
    assert step.decode_requests == 1
    assert step.slots.tolist() == [1, 4]
    assert step.starts.tolist() == [0, 1, 4]
    assert step.tokens.tolist() == [FROM_DEVICE, 11, 12, 13]


def test_a_packed_step_unpacks_to_the_same() -> None:
    step = example()
    again = Step.unpack(step.pack())
    assert (again.id, again.decode_requests) == (9, 1)
    assert again.admissions.seeds.view(np.uint64).ravel().tolist() == [2**64 - 3]
    assert again.admissions.bias_values[0].view(np.float32).tolist() == [-1.5]
    assert again.admissions.bad_words[0].tolist() == [2, 3, 4]
    assert again.admissions.prompt[0].tolist() == [11, 12, 13]
    assert again.write_pages[0].tolist() == [8, 9]
    assert again.copies.tolist() == [[0, 5, 6]]
    assert again.nano_batch.tolist() == [1, 0]
    assert again.admissions.temperature.dtype == np.float32
    assert np.array_equal(again.pack(), step.pack())


def test_a_step_that_admits_nobody_is_packed_without_what_it_would_say_of_them() -> None:
    step = example()
    whole, step.admissions = len(step.pack()), Admissions()
    again = Step.unpack(step.pack())
    assert len(step.pack()) < whole
    assert (len(again.admissions), len(again.admissions.prompt)) == (0, 0)
    assert (again.slots.tolist(), again.copies.tolist()) == (step.slots.tolist(), [[0, 5, 6]])


def test_another_format_is_refused() -> None:
    packed = example().pack()
    packed[0] = 99
    with pytest.raises(ValueError, match="step format 99"):
        Step.unpack(packed)


def test_ragged_lists_keep_their_borders() -> None:
    ragged = Ragged.of([[1, 2], [], [3]])
    assert [ragged[index].tolist() for index in range(3)] == [[1, 2], [], [3]]
