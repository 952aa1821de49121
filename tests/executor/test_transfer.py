from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from camshaft.contracts.kv_quant import KVField, KVLayout
from camshaft.contracts.kv_store import StoreSpec
from camshaft.executor.groups import GroupMemory, allocate_group
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.executor.transfer import PageTransfer
from camshaft.plugins.cache.components import MemorySettings
from camshaft.plugins.cache.stores.memory import MemoryStore
from camshaft.plugins.hardware.components import CpuSettings
from camshaft.plugins.hardware.cpu import CpuBackend
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request
from camshaft.testing.toy import compose_toy

PAGES = 9
PLAIN = (KVField("k", (2, 4, 8), "float32"), KVField("v", (2, 4, 6), "bfloat16"))
SCALED = (*PLAIN, KVField("k_scale", (3,), "float16"), KVField("odd", (5,), "uint8"))
LAYERS = (0, 2, 5)


def group_of(fields, ratio=1, hardware=None) -> GroupMemory:
    """A group whose pages hold random bytes."""
    backend = SimpleNamespace(kv_layout=lambda: KVLayout("heads_first", fields))
    hardware = hardware or CpuBackend(CpuSettings())
    group = allocate_group(hardware, backend, backend, LAYERS, PAGES * ratio, 4)  # type: ignore[arg-type]
    chance = torch.Generator().manual_seed(0)
    for tensor in group.all_fields():
        raw = tensor.flatten().view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, generator=chance, dtype=torch.uint8))
    return group


def content(group, page, ratio=1) -> bytes:
    """A page as a store keeps it: field by field, each layer by layer."""
    here = slice(page * ratio, (page + 1) * ratio)
    names = next(iter(group.fields.values()))
    return b"".join(
        bytes(layer[name][here].flatten().view(torch.uint8).tolist())
        for name in names
        for layer in group.fields.values()
    )


def exported(transfer, pages) -> list[bytes]:
    host = transfer.room(len(pages))
    transfer.export(pages, host).wait()
    result = []
    for place in range(len(pages)):
        into = bytearray(transfer.shape.page_bytes)
        host.read(place, memoryview(into))
        result.append(bytes(into))
    return result


def load(transfer, pages, contents):
    host = transfer.room(len(pages))
    for place, one in enumerate(contents):
        host.write(place, memoryview(one))
    return transfer.load(pages, host)


@pytest.mark.parametrize("fields", [PLAIN, SCALED])
@pytest.mark.parametrize("ratio", [1, 2])
def test_pages_are_exported_to_the_bit(fields, ratio):
    group = group_of(fields, ratio)
    transfer = PageTransfer(group, CpuBackend(CpuSettings()), ratio=ratio)
    assert exported(transfer, [7, 1, 4]) == [content(group, page, ratio) for page in (7, 1, 4)]


@pytest.mark.parametrize("fields", [PLAIN, SCALED])
@pytest.mark.parametrize("ratio", [1, 2])
def test_pages_are_loaded_to_the_bit_and_others_stay(fields, ratio):
    group = group_of(fields, ratio)
    transfer = PageTransfer(group, CpuBackend(CpuSettings()), ratio=ratio)
    before = [content(group, page, ratio) for page in range(PAGES)]
    loading = load(transfer, [3, 8], [before[5], before[0]])
    loading.wait()
    assert loading.reached()
    wanted = [*before[:3], before[5], *before[4:8], before[0]]
    assert [content(group, page, ratio) for page in range(PAGES)] == wanted


def test_an_export_is_of_the_moment_it_was_asked_for():
    group = group_of(PLAIN)
    transfer = PageTransfer(group, CpuBackend(CpuSettings()))
    before, host = content(group, 2), transfer.room(1)
    exporting = transfer.export([2], host)
    group.fill(torch.tensor([2]), 0.0)
    exporting.wait()
    into = bytearray(transfer.shape.page_bytes)
    host.read(0, memoryview(into))
    assert into == before


def test_a_page_has_the_bytes_that_the_layout_says():
    transfer = PageTransfer(group_of(SCALED), CpuBackend(CpuSettings()))
    assert transfer.shape.page_bytes == 3 * (2 * 4 * 8 * 4 + 2 * 4 * 6 * 2 + 3 * 2 + 5)


class Streams(CpuBackend):
    """Notes which event was recorded and joined in which stream."""

    def __init__(self) -> None:
        super().__init__(CpuSettings())
        self.log: list[tuple[str, int, str]] = []
        self.current, self.count, self.is_done = "steps", 0, False

    @contextmanager
    def stream(self, number=0):
        self.current = "second"
        yield
        self.current = "steps"

    def event(self):
        number, self.count = self.count, self.count + 1

        def note(what):
            self.log.append((what, number, self.current))

        return SimpleNamespace(
            record=lambda: note("record"),
            join=lambda: note("join"),
            wait=lambda: note("wait"),
            reached=lambda: self.is_done,
        )


def test_an_export_is_sent_in_the_second_stream_behind_the_gathering():
    hardware = Streams()
    transfer = PageTransfer(group_of(PLAIN), hardware)
    transfer.export([1, 2], transfer.room(2)).wait()
    assert hardware.log == [
        ("record", 0, "steps"),
        ("join", 0, "second"),
        ("record", 1, "second"),
        ("wait", 1, "steps"),
    ]


def test_a_layer_waits_for_its_own_part_of_a_load():
    hardware = Streams()
    group = group_of(PLAIN)
    transfer = PageTransfer(group, hardware, pieces=2)
    loading = load(transfer, [1], [content(group, 2)])
    assert hardware.log == [("record", 0, "second"), ("record", 1, "second")]
    hardware.log.clear()
    joined = []
    for layer in range(3):
        loading.join(layer)
        joined.append(len(hardware.log))
    assert joined == [1, 2, 2]
    assert hardware.log == [("join", 0, "steps"), ("join", 1, "steps")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_answer_does_not_notice_that_its_pages_were_in_a_store(dtype):
    changes = {"model": {"dtype": dtype}, "engine": {"deterministic": dtype == "float32"}}
    stayed, came_back = (answer(changes, away) for away in (False, True))
    assert len(stayed) == 24
    assert stayed == came_back


def answer(changes, away) -> list[int]:
    """The tokens of a request whose pages leave the device for a moment, or do not."""
    engine = compose_toy(changes=changes).engine
    engine.submit(make_request("a", list(range(1, 20)), 24, ignore_eos=True))
    outputs: dict[str, RequestOutput] = {}
    for _ in range(6):
        collect(engine.step(), outputs)
    if away:
        executor = engine.parts.executor
        assert isinstance(executor, TorchExecutor)
        (group,) = executor.parts.groups
        pages = list(range(1, len(group.all_fields()[0])))
        send_away(group, pages, executor.parts.hardware)
    while engine.has_work:
        collect(engine.step(), outputs)
    return list(outputs["a"].token_ids)


def send_away(group, pages, hardware):
    """Put pages into a store, poison them, and get them back."""
    transfer = PageTransfer(group, hardware)
    size = transfer.shape.page_bytes
    store = MemoryStore(MemorySettings(capacity=len(pages) * size), StoreSpec(size))
    for page, one in zip(pages, exported(transfer, pages), strict=True):
        assert store.put(page.to_bytes(16, "little"), memoryview(one))
    group.fill(torch.tensor(pages), float("nan"))
    host = transfer.room(len(pages))
    for place, page in enumerate(pages):
        into = bytearray(size)
        assert store.get(page.to_bytes(16, "little"), memoryview(into))
        host.write(place, memoryview(into))
    transfer.load(pages, host).wait()
