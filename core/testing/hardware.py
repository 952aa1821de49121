"""The contract of hardware backends, as tests to inherit. Needs torch."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import torch

from ..contracts.hardware import HardwareBackend
from ..errors import DeviceError
from ..facts import Capability

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..contracts.hardware import Outputs, Recording

_UNITS = (1, 2**10, 2**20, 2**30, 10**3, 10**6, 10**9)


class HardwareContract:
    """Subclass it, define `make`, and run pytest on a machine that has the device."""

    def make(self) -> HardwareBackend:
        """Return the backend under test, not opened."""
        raise NotImplementedError

    @contextmanager
    def opened(self) -> Iterator[HardwareBackend]:
        """Open a new backend, and close it afterwards."""
        hardware = self.make()
        hardware.open()
        try:
            yield hardware
        finally:
            hardware.close()

    def test_facts_need_no_open_device(self) -> None:
        """They are asked for when a recipe is checked, before anything is touched."""
        facts = self.make().facts()
        assert facts.kind in {"cpu", "cuda", "rocm", "simulated"}
        assert facts.name
        assert facts.memory_bytes > 0
        assert facts.threads >= 1
        assert facts.capabilities <= set(Capability)

    def test_facts_name_dtypes_that_torch_knows(self) -> None:
        """At least one; without `torch.` in front."""
        dtypes = self.make().facts().dtypes
        assert dtypes
        assert all(isinstance(getattr(torch, name), torch.dtype) for name in dtypes)

    def test_facts_stay_as_they_are(self) -> None:
        """A recipe is checked against them, and the engine is then built on them."""
        hardware = self.make()
        facts = hardware.facts()
        assert hardware.facts() == facts
        hardware.open()
        assert hardware.facts() == facts
        hardware.close()

    def test_nothing_is_touched_before_it_is_opened(self) -> None:
        """Neither torch's threads nor an accelerator's context."""
        threads, there = torch.get_num_threads(), _has_context()
        torch.set_num_threads(threads + 1)  # a number that nobody would choose by accident
        try:
            self.make().facts()
            assert torch.get_num_threads() == threads + 1
            assert _has_context() == there
        finally:
            torch.set_num_threads(threads)

    def test_tensors_are_made_on_its_device(self) -> None:
        """`device` is a word that torch understands."""
        with self.opened() as hardware:
            assert torch.ones(3, device=hardware.device).sum().item() == 3

    def test_a_new_one_can_be_opened_after_close(self) -> None:
        """The device was given back."""
        for _ in range(2):
            with self.opened() as hardware:
                assert hardware.allocate(64).numel() == 64

    def test_the_memory_report_is_plausible(self) -> None:
        """Free memory is part of all memory, and weights and pages get at most that."""
        with self.opened() as hardware:
            report = hardware.memory()
            assert 0 <= report.free <= report.total
            assert 0 < hardware.facts().memory_bytes <= report.total

    @pytest.mark.parametrize("size", [1, 64, 1000, 4097, 2**20 + 3])
    def test_a_region_is_zeroed_and_aligned(self, size: int) -> None:
        """To 64 bytes, of exactly the size, also where another region was a moment ago."""
        with self.opened() as hardware:
            for _ in range(3):
                region = hardware.allocate(size)
                assert region.shape == (size,)
                assert region.dtype is torch.uint8
                assert region.device.type == torch.device(hardware.device).type
                assert region.data_ptr() % 64 == 0
                assert not region.any().item()
                region.fill_(255)
                del region

    def test_regions_do_not_overlap(self) -> None:
        """What is written to one is not seen in another."""
        with self.opened() as hardware:
            regions = [hardware.allocate(100) for _ in range(5)]
            for value, region in enumerate(regions):
                region.fill_(value)
            assert [set(region.tolist()) for region in regions] == [{0}, {1}, {2}, {3}, {4}]

    def test_too_much_memory_is_refused_with_numbers(self) -> None:
        """By a `DeviceError` that says how much is free; smaller regions can still be had."""
        with self.opened() as hardware:
            report = hardware.memory()
            with pytest.raises(DeviceError) as refused:
                hardware.allocate(4 * report.total)
            text = str(refused.value)
            # others use the machine too: a quarter of the whole may come or go meanwhile
            assert _mentions(text, report.free, slack=report.total // 4), text
            assert hardware.allocate(64).numel() == 64

    def test_pages_are_copied_to_the_bit(self) -> None:
        """In every field, whatever its dtype and shape, NaN included; other pages are kept."""
        with self.opened() as hardware:
            fields = _fields(hardware)
            before = [_bits(field) for field in fields]
            hardware.copy_pages(fields, [1, 5, 5], [4, 0, 7])
            for field, old in zip(fields, before, strict=True):
                wanted = old[[5, 1, 2, 3, 1, 5, 6, 5]]
                assert torch.equal(_bits(field), wanted), field.dtype

    def test_copies_happen_in_stream_order(self) -> None:
        """After the writes before them, and before the copies after them."""
        with self.opened() as hardware:
            field = torch.zeros((4, 3), device=hardware.device)
            field[0] = 7.0
            hardware.copy_pages([field], [0], [1])
            field[0] = 8.0
            hardware.copy_pages([field], [1], [2])
            assert field[:, 0].tolist() == [8.0, 7.0, 7.0, 0.0]

    def test_no_pages_are_no_work(self) -> None:
        """An empty list is a list."""
        with self.opened() as hardware:
            field = torch.ones((4, 3), device=hardware.device)
            hardware.copy_pages([field], [], [])
            assert field.sum().item() == 12

    def test_a_host_copy_is_good_once_its_event_was_waited_for(self) -> None:
        """However much work is queued in front of it."""
        with self.opened() as hardware:
            value = torch.eye(64, device=hardware.device)
            for _ in range(50):
                value = value @ value
            host = hardware.to_host(value)
            event = hardware.event()
            event.record()
            event.wait()
            event.wait()
            assert host.device.type == "cpu"
            assert torch.equal(host, torch.eye(64))

    def test_a_host_copy_does_not_follow_the_tensor(self) -> None:
        """It is a copy of that moment: the next step may write the same buffer."""
        with self.opened() as hardware:
            value = torch.arange(5, device=hardware.device)
            host = hardware.to_host(value)
            value.fill_(-1)
            event = hardware.event()
            event.record()
            event.wait()
            assert host.tolist() == [0, 1, 2, 3, 4]

    def test_host_memory_goes_to_the_device_and_back(self) -> None:
        """Pieces are the caller's alone, also when asked for on another thread."""
        with self.opened() as hardware:
            with ThreadPoolExecutor(1) as thread:
                host, other = thread.map(hardware.host_memory, (256, 256))
            assert host.device.type == "cpu"
            assert host.dtype is torch.uint8
            host.copy_(torch.arange(256, dtype=torch.uint8))
            other.fill_(0)
            device = host.to(hardware.device, non_blocking=True)
            other.copy_(device, non_blocking=True)
            event = hardware.event()
            event.record()
            event.wait()
            assert other.tolist() == list(range(256))

    def test_events_are_independent(self) -> None:
        """Each call gives a new one, and it can be recorded again."""
        with self.opened() as hardware:
            first, second = hardware.event(), hardware.event()
            assert first is not second
            for event in (second, first, second):
                event.record()
                event.wait()

    def test_work_on_the_second_stream_is_done_behind_its_event(self) -> None:
        """The context can be entered again and again."""
        with self.opened() as hardware:
            value = torch.ones(8, device=hardware.device)
            start = hardware.event()
            start.record()
            start.wait()
            for wanted in (16.0, 32.0):
                with hardware.stream():
                    value = value * 2
                    event = hardware.event()
                    event.record()
                event.wait()
                assert value.sum().item() == wanted

    def test_a_mark_that_was_waited_for_is_reached(self) -> None:
        """And one that was never made."""
        with self.opened() as hardware:
            event = hardware.event()
            assert event.reached()
            event.record()
            event.wait()
            assert event.reached()

    def test_streams_can_wait_for_each_other(self) -> None:
        """The host does not: it puts work into both, there and back."""
        with self.opened() as hardware:
            value = torch.eye(64, device=hardware.device)
            for _ in range(20):
                there, back = hardware.event(), hardware.event()
                for _ in range(5):
                    value = value @ value
                value = value * 2
                there.record()
                with hardware.stream():
                    there.join()
                    value = value / 2
                    back.record()
                back.join()
            assert torch.equal(value.cpu(), torch.eye(64))

    def test_streams_have_numbers(self) -> None:
        """Work forks into several and meets again; only events order it."""
        with self.opened() as hardware:
            given = torch.eye(256, device=hardware.device)
            results = torch.zeros(3, 256, 256, device=hardware.device)
            for turn in range(10):
                start = hardware.event()
                given.mul_(2)
                start.record()
                ends = [hardware.event() for _ in range(3)]
                for number, end in enumerate(ends):
                    with hardware.stream(number):
                        start.join()
                        results[number] = given @ given + number
                        end.record()
                for end in ends:
                    end.join()
                sums = (results - torch.arange(3, device=given.device)[:, None, None]).sum((1, 2))
                assert sums.tolist() == [256 * 4.0 ** (turn + 1)] * 3

    def test_recordings_of_different_lanes_share_no_memory(self) -> None:
        """One is replayed between the replay of another one and the look at its results."""
        with self.opened() as hardware:
            given = torch.zeros(64, device=hardware.device)
            first = hardware.capture(lambda: (given * 2,))
            second = hardware.capture(lambda: (given + 1,), 1)
            first.share()
            second.share()
            for value in (3.0, 5.0):
                given.fill_(value)
                (doubled,), (more,) = first.replay(), second.replay()
                assert doubled is not None
                assert more is not None
                assert doubled.tolist() == [2 * value] * 64
                assert more.tolist() == [value + 1] * 64

    def test_a_capture_replays_on_what_the_buffers_hold_now(self) -> None:
        """As often as it is called, each time with the whole effect."""
        with self.opened() as hardware:
            given = torch.zeros(3, device=hardware.device)
            result = torch.zeros(3, device=hardware.device)
            count = torch.zeros(1, device=hardware.device)

            def double() -> Outputs:
                result.copy_(given * 2 + 1)
                count.add_(1)
                return (result - 1, None)

            recording = hardware.capture(double)
            count.zero_()
            assert _replayed(hardware, recording, given, result, 3.0) == [7.0, 7.0, 7.0]
            assert _replayed(hardware, recording, given, result, 5.0) == [11.0, 11.0, 11.0]
            given.fill_(9.0)
            (less, nothing) = recording.begin()()
            assert less is not None
            assert (less.tolist(), result.tolist(), nothing) == ([18.0] * 3, [19.0] * 3, None)
            assert count.item() == 3

    def test_the_results_of_a_capture_can_be_read_and_shared(self) -> None:
        """By a capture that goes on from them, and after their memory was given to others."""
        with self.opened() as hardware:
            given = torch.zeros(64, device=hardware.device)
            results: list[Outputs] = [()]

            def begin() -> Outputs:
                results[0] = given * 2, None
                return results[0]

            first = hardware.capture(begin)

            def go_on() -> Outputs:
                doubled = results[0][0]
                assert doubled is not None
                return ((doubled + 1).to(torch.bfloat16).view(8, 8).t(),)

            second = hardware.capture(go_on)
            for recording in (first, second):
                recording.share()
            for value in (3.0, 5.0):
                given.fill_(value)
                results[0] = first.replay()
                assert results[0][1] is None
                (last,) = second.replay()
                assert last is not None
                assert last.tolist() == [[2 * value + 1] * 8] * 8
                assert last.dtype is torch.bfloat16

    def test_one_rank_communicates_with_itself(self) -> None:
        """Every collective leaves its data as they are."""
        with self.opened() as hardware:
            alone = hardware.communicator(0, 1)
            assert (alone.rank, alone.size) == (0, 1)
            value = torch.arange(6.0, device=hardware.device).view(2, 3)
            before = value.clone()
            alone.all_reduce(value)
            assert torch.equal(value, before)
            assert torch.equal(alone.all_gather(value), before)
            alone.broadcast(value, 0)
            assert torch.equal(value, before)

    def test_more_ranks_than_there_are_devices_are_refused(self) -> None:
        """At once and by number, not by waiting for ranks that never come."""
        with self.opened() as hardware, pytest.raises(DeviceError, match="1000000"):
            hardware.communicator(0, 1_000_000)


def _mentions(text: str, size: int, slack: int) -> bool:
    """Return whether a number in `text` is `size` bytes in some unit, give or take."""
    numbers = [float(word) for word in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))]
    return any(abs(number * unit - size) <= slack for number in numbers for unit in _UNITS)


def _fields(hardware: HardwareBackend) -> list[torch.Tensor]:
    """Return 8 random pages in fields of three kinds, laid into one region as the core does."""
    shapes = [(torch.float32, (4, 2, 3)), (torch.bfloat16, (2, 8)), (torch.uint8, (5,))]
    generator = torch.Generator().manual_seed(0)
    region, at, fields = hardware.allocate(4096), 0, []
    for dtype, shape in shapes:
        size = 8 * torch.Size(shape).numel() * dtype.itemsize
        raw = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
        region[at : at + size] = raw.to(hardware.device)
        field = region[at : at + size].view(dtype).view(8, *shape)
        if dtype.is_floating_point:
            field[1] = float("nan")
        fields.append(field)
        at += -(-size // 64) * 64
    return fields


def _bits(field: torch.Tensor) -> torch.Tensor:
    """Return a host copy of the bytes of each page: NaN does not equal NaN, its bytes do."""
    return field.contiguous().view(len(field), -1).view(torch.uint8).cpu().clone()


def _replayed(
    hardware: HardwareBackend,
    recording: Recording,
    given: torch.Tensor,
    result: torch.Tensor,
    value: float,
) -> list[float]:
    """Fill the input, replay, and return the output."""
    given.fill_(value)
    recording.replay()
    event = hardware.event()
    event.record()
    event.wait()
    return result.tolist()


def _has_context() -> bool:
    """Whether this process holds memory of an accelerator."""
    return any(
        torch._C._cuda_hasPrimaryContext(index)  # type: ignore[attr-defined]
        for index in range(_devices())
    )


def _devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
