from __future__ import annotations

import random
import threading
import time

import pytest

from camshaft.contracts.kv_store import KVStore
from camshaft.plugins.cache.stores.queue import Done, StoreQueue
from camshaft.testing.kv_store import PAGE, content, digest


class Slow(KVStore):
    """Keeps everything, when `gate` is open; a share of operations fails."""

    def __init__(self, failures: float = 0.0, delay_s: float = 0.0) -> None:
        self.pages: dict[bytes, bytes] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.failures, self.delay_s = failures, delay_s
        self.chance = random.Random(0)
        self.order: list[tuple[str, bytes]] = []
        self.threads: set[int] = set()
        self.is_closed = False

    def _pass(self, kind, digest):
        self.threads.add(threading.get_ident())
        assert self.gate.wait(10)
        time.sleep(self.delay_s)
        self.order.append((kind, digest))
        if self.chance.random() < self.failures:
            raise OSError("a bad day")

    def contains(self, digests):
        return 0

    def put(self, digest, page):
        self._pass("put", digest)
        self.pages[digest] = bytes(page)
        return True

    def get(self, digest, into):
        self._pass("get", digest)
        if digest in self.pages:
            into[:] = self.pages[digest]
        return digest in self.pages

    def discard(self, digest):
        self.pages.pop(digest, None)

    def digests(self):
        return list(self.pages)

    def used_bytes(self):
        return 0

    def close(self):
        self.is_closed = True


def queue(store, *, threads=1, most=100, **more) -> StoreQueue:
    return StoreQueue(store, threads=threads, most_reads=most, most_writes=most, **more)


def begun(ticket: int | None) -> int:
    assert ticket is not None
    return ticket


def page(name):
    return memoryview(content(name))


def room():
    return memoryview(bytearray(PAGE))


def all_of(one: StoreQueue) -> list[Done]:
    """Wait until nothing is pending."""
    ended: list[Done] = []
    until = time.monotonic() + 10
    while one.pending():
        ended += one.finished()
        assert time.monotonic() < until
        time.sleep(0.001)
    return ended


def test_pages_are_written_and_read_on_other_threads():
    store = Slow()
    work = queue(store, threads=3)
    into = room()
    written = begun(work.write(digest("a"), page("a")))
    assert all_of(work) == [Done(written, "write", True)]
    read = begun(work.read(digest("a"), into))
    assert all_of(work) == [Done(read, "read", True)]
    assert into == content("a")
    assert threading.get_ident() not in store.threads
    work.close()
    assert store.is_closed


def test_what_is_missing_is_not_ok():
    work = queue(Slow())
    ticket = begun(work.read(digest("a"), room()))
    assert all_of(work) == [Done(ticket, "read", False)]
    work.close()


def test_a_slow_store_refuses_instead_of_keeping_anybody_waiting():
    store = Slow()
    store.gate.clear()
    work = queue(store, most=2)
    began = time.monotonic()
    assert [work.write(digest(name), page(name)) is None for name in "abcd"] == [0, 0, 1, 1]
    assert [work.read(digest(name), room()) is None for name in "abc"] == [0, 0, 1]
    assert work.finished() == []
    assert time.monotonic() - began < 1
    store.gate.set()
    assert len(all_of(work)) == 4
    assert work.write(digest("e"), page("e")) is not None
    work.close()
    assert work.counts.all()["writes_refused"] == 2
    assert work.counts.all()["reads_refused"] == 1


def test_reads_overtake_writes_of_other_pages():
    store = Slow()
    store.gate.clear()
    work = queue(store)
    for name in "abc":
        work.write(digest(name), page(name))
    while not store.threads:
        time.sleep(0.001)  # the first write has begun
    work.read(digest("x"), room())
    store.gate.set()
    all_of(work)
    work.close()
    wanted = [("put", "a"), ("get", "x"), ("put", "b"), ("put", "c")]
    assert store.order == [(kind, digest(name)) for kind, name in wanted]


@pytest.mark.parametrize("threads", [1, 4])
def test_TIR_05_a_page_that_is_read_while_it_is_stored_comes_whole(threads):
    store = Slow()
    store.gate.clear()
    work = queue(store, threads=threads)
    rooms = {name: room() for name in "abcdef"}
    for name in rooms:
        work.write(digest(name), page(name))
    reads = {begun(work.read(digest(name), into)): name for name, into in rooms.items()}
    store.gate.set()
    ended = {one.ticket: one.ok for one in all_of(work)}
    work.close()
    assert all(ended[ticket] for ticket in reads)
    assert all(into == content(name) for name, into in rooms.items())


def test_TIR_05_a_slow_store_that_fails_now_and_then_ends_everything():
    work = queue(Slow(failures=0.1, delay_s=0.002), threads=2, most=8)
    chance, rooms, ended = random.Random(1), {}, []
    for _ in range(300):
        name = chance.randrange(12)
        if chance.random() < 0.4:
            work.write(digest(name), page(name))
        else:
            into = room()
            ticket = work.read(digest(name), into)
            if ticket is not None:
                rooms[ticket] = (name, into)
            if ticket is not None and chance.random() < 0.2:
                work.cancel(ticket)
        time.sleep(0.0005)
        ended += work.finished()
    ended += all_of(work)
    work.close()
    found = [one.ticket for one in ended if one.kind == "read" and one.ok]
    assert len(found) > 20
    assert all(rooms[ticket][1] == content(rooms[ticket][0]) for ticket in found)
    assert {one.ticket for one in ended} >= rooms.keys()
    assert work.counts.all()["store_errors"] > 0


def test_a_discarded_page_is_not_found_though_it_was_being_stored():
    store = Slow()
    store.gate.clear()
    work = queue(store)
    for name in "abc":
        work.write(digest(name), page(name))
    work.discard(digest("a"))
    first = begun(work.read(digest("a"), room()))
    again = begun(work.write(digest("a"), page("a")))
    second = begun(work.read(digest("a"), room()))
    store.gate.set()
    ended = {one.ticket: one.ok for one in all_of(work)}
    work.close()
    assert (ended[first], ended[again], ended[second]) == (False, True, True)


def test_what_is_cancelled_before_it_begins_is_not_done():
    store = Slow()
    store.gate.clear()
    work = queue(store)
    work.write(digest("a"), page("a"))
    ticket = begun(work.read(digest("a"), room()))
    work.cancel(ticket)
    store.gate.set()
    assert Done(ticket, "read", False) in all_of(work)
    work.close()
    assert [kind for kind, _ in store.order] == ["put"]
    assert work.counts.all()["cancelled"] == 1


def test_an_idle_loop_is_woken():
    woken = threading.Event()
    work = queue(Slow(), wake=woken.set)
    work.read(digest("a"), room())
    assert woken.wait(5)
    assert len(work.finished()) == 1
    work.close()


def test_closing_finishes_what_is_pending():
    store = Slow(delay_s=0.01)
    work = queue(store, threads=2)
    for name in "abcdef":
        work.write(digest(name), page(name))
    work.close()
    assert len(store.pages) == 6


def test_a_store_that_hangs_does_not_keep_the_engine_from_closing():
    store = Slow()
    store.gate.clear()
    work = queue(store)
    work.write(digest("a"), page("a"))
    work.close(within_s=0.05)
    assert not store.is_closed
    assert work.counts.all()["store_errors"] == 1
    store.gate.set()


class Backwards:
    """Room whose bytes stand in reverse order."""

    def __init__(self, content: bytes = bytes(PAGE)) -> None:
        self.content = content

    def read(self, into: memoryview) -> None:
        into[:] = self.content[::-1]

    def write(self, page: memoryview) -> None:
        self.content = bytes(page)[::-1]


def test_pages_may_stand_in_another_order_where_they_come_from_and_go_to() -> None:
    store = Slow()
    with_rooms = queue(store, page_bytes=PAGE)
    written, back = Backwards(content("a")[::-1]), Backwards()
    with_rooms.write(digest("a"), written)
    assert [one.ok for one in all_of(with_rooms)] == [True]
    assert store.pages[digest("a")] == content("a")
    with_rooms.read(digest("a"), back)
    with_rooms.read(digest("b"), written)
    assert sorted(one.ok for one in all_of(with_rooms)) == [False, True]
    assert back.content == written.content == content("a")[::-1]
    with_rooms.close()


def test_without_threads_all_is_done_when_somebody_looks() -> None:
    store = Slow()
    inline = queue(store, threads=0)
    inline.write(digest("a"), page("a"))
    inline.read(digest("a"), into := room())
    assert store.order == []
    assert [(one.kind, one.ok) for one in inline.finished()] == [("write", True), ("read", True)]
    assert store.threads == {threading.get_ident()}
    assert bytes(into) == content("a")
    inline.discard(digest("a"))
    inline.close()
    assert store.pages == {}
    assert store.is_closed
