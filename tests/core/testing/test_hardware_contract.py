from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from camshaft.contracts.hardware import HardwareBackend, MemoryReport
from camshaft.errors import DeviceError
from camshaft.facts import DeviceFacts
from camshaft.testing.hardware import HardwareContract
from camshaft.testing.rejects import failures

GIB = 2**30


class Happened:
    def record(self):
        pass

    def wait(self):
        pass

    def reached(self):
        return True

    def join(self):
        pass


class Alone:
    rank, size = 0, 1

    def all_reduce(self, tensor):
        pass

    def all_gather(self, tensor):
        return tensor

    def broadcast(self, tensor, source):
        pass


class Again:
    def __init__(self, function):
        self.function = function

    def replay(self):
        return self.function()

    def begin(self):
        return self.function

    def share(self):
        pass


class Device(HardwareBackend):
    """A device of 2 GiB that is really the host."""

    device = "cpu"

    def facts(self):
        return DeviceFacts("simulated", "small", GIB, frozenset({"float32"}))

    def open(self):
        pass

    def close(self):
        pass

    def memory(self):
        return MemoryReport(2 * GIB, GIB)

    def allocate(self, size):
        if size > GIB:
            raise DeviceError(f"{size} bytes are asked for and 1.0 GiB is free")
        return torch.zeros(size, dtype=torch.uint8)

    def copy_pages(self, fields, source, target):
        for field in fields:
            for from_, to in zip(source, target, strict=True):
                field[to] = field[from_]

    def event(self):
        return Happened()

    def stream(self, number=0):
        return nullcontext()

    def to_host(self, tensor):
        return tensor.clone()

    def host_memory(self, size):
        return torch.empty(size, dtype=torch.uint8)

    def capture(self, function, lane=0):
        return Again(function)

    def communicator(self, rank, size):
        if size > 1:
            raise DeviceError(f"one rank only; {size} are asked for")
        return Alone()


def verdict(device: type[HardwareBackend]) -> list[str]:
    class Contract(HardwareContract):
        def make(self) -> HardwareBackend:
            return device()

    return failures(Contract)


def test_a_good_device_passes() -> None:
    assert verdict(Device) == []


class FactsOnlyWhenOpen(Device):
    is_open = False

    def open(self):
        self.is_open = True

    def facts(self):
        assert self.is_open
        return super().facts()


class Eager(Device):
    def __init__(self):
        torch.set_num_threads(7)


class UnknownDtype(Device):
    def facts(self):
        return DeviceFacts("cpu", "odd", GIB, frozenset({"torch.float32"}))


class MoreFreeThanThereIs(Device):
    def memory(self):
        return MemoryReport(GIB, 2 * GIB)


class Dirty(Device):
    def allocate(self, size):
        return super().allocate(size).fill_(1)


class Unaligned(Device):
    def allocate(self, size):
        return super().allocate(size + 8)[8:]


class OneRegion(Device):
    """Hands out the same memory twice."""

    def open(self):
        self.pool = super().allocate(2**21)

    def allocate(self, size):
        super().allocate(size)
        return self.pool[:size].zero_()


class Taciturn(Device):
    def allocate(self, size):
        if size > GIB:
            raise DeviceError("out of memory")
        return super().allocate(size)


class TorchsOwnError(Device):
    def allocate(self, size):
        if size > GIB:
            raise MemoryError("1.0 GiB is free")
        return super().allocate(size)


class FirstFieldOnly(Device):
    def copy_pages(self, fields, source, target):
        super().copy_pages(fields[:1], source, target)


class ThroughFloats(Device):
    """Loses the bytes of pages that look like integers."""

    def copy_pages(self, fields, source, target):
        for field in fields:
            for from_, to in zip(source, target, strict=True):
                field[to] = (field[from_].float() / 3 * 3).to(field.dtype)


class Swapped(Device):
    def copy_pages(self, fields, source, target):
        super().copy_pages(fields, target, source)


class Late(Device):
    """Copies when the next copy is asked for."""

    def open(self):
        self.waiting = None

    def copy_pages(self, fields, source, target):
        if self.waiting:
            super().copy_pages(*self.waiting)
        self.waiting = (fields, source, target)


class NoCopy(Device):
    def to_host(self, tensor):
        return tensor


class NeverThere(Device):
    def event(self):
        event = Happened()
        event.reached = lambda: False  # type: ignore[method-assign]
        return event


class OneHostRegion(Device):
    room = torch.empty(256, dtype=torch.uint8)

    def host_memory(self, size):
        return self.room[:size]


class CapturedOnce(Device):
    def capture(self, function, lane=0):
        results = function()
        return Again(lambda: results)


class ReplaysOnce(Device):
    def capture(self, function, lane=0):
        calls = iter([function])
        return Again(lambda: next(calls, lambda: (None, None))())


class Forgetful(Again):
    def share(self):
        function = self.function
        self.function = lambda: (function()[0] * 0, None)


class KeepsNoResults(Device):
    def capture(self, function, lane=0):
        return Forgetful(function)


class OneSideStream(Device):
    def stream(self, number=0):
        if number:
            raise ValueError(f"there is no stream {number}")
        return nullcontext()


class OnePlaceForAllLanes(Device):
    """Results lie in the same memory whatever the lane."""

    def __init__(self):
        self.place = torch.zeros(64)

    def capture(self, function, lane=0):
        def run():
            result, *others = function()
            if result is None or result.dtype != torch.float32:
                return (result, *others)
            return (self.place[: result.numel()].copy_(result.flatten()), *others)

        return super().capture(run, lane)


class AnyRanks(Device):
    def communicator(self, rank, size):
        return Alone()


class SumsTwice(Device):
    def communicator(self, rank, size):
        super().communicator(rank, size)

        class Doubling(Alone):
            def all_reduce(self, tensor):
                tensor += tensor

        return Doubling()


@pytest.mark.parametrize(
    ("device", "test"),
    [
        (FactsOnlyWhenOpen, "test_facts_need_no_open_device"),
        (Eager, "test_nothing_is_touched_before_it_is_opened"),
        (UnknownDtype, "test_facts_name_dtypes_that_torch_knows"),
        (MoreFreeThanThereIs, "test_the_memory_report_is_plausible"),
        (Dirty, "test_a_region_is_zeroed_and_aligned"),
        (Unaligned, "test_a_region_is_zeroed_and_aligned"),
        (OneRegion, "test_regions_do_not_overlap"),
        (Taciturn, "test_too_much_memory_is_refused_with_numbers"),
        (TorchsOwnError, "test_too_much_memory_is_refused_with_numbers"),
        (FirstFieldOnly, "test_pages_are_copied_to_the_bit"),
        (ThroughFloats, "test_pages_are_copied_to_the_bit"),
        (Swapped, "test_pages_are_copied_to_the_bit"),
        (Late, "test_copies_happen_in_stream_order"),
        (NoCopy, "test_a_host_copy_does_not_follow_the_tensor"),
        (NeverThere, "test_a_mark_that_was_waited_for_is_reached"),
        (OneHostRegion, "test_host_memory_goes_to_the_device_and_back"),
        (CapturedOnce, "test_a_capture_replays_on_what_the_buffers_hold_now"),
        (ReplaysOnce, "test_a_capture_replays_on_what_the_buffers_hold_now"),
        (KeepsNoResults, "test_the_results_of_a_capture_can_be_read_and_shared"),
        (OneSideStream, "test_streams_have_numbers"),
        (OnePlaceForAllLanes, "test_recordings_of_different_lanes_share_no_memory"),
        (AnyRanks, "test_more_ranks_than_there_are_devices_are_refused"),
        (SumsTwice, "test_one_rank_communicates_with_itself"),
    ],
)
def test_a_device_that_breaks_a_promise_is_rejected(
    device: type[HardwareBackend], test: str
) -> None:
    threads = torch.get_num_threads()
    assert test in verdict(device)
    torch.set_num_threads(threads)
