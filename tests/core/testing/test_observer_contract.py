from __future__ import annotations

import time

import pytest

from camshaft.contracts.observer import Observer
from camshaft.testing.observer import ObserverContract
from camshaft.testing.rejects import failures


class Counter(Observer):
    """Counts the requests that run."""

    def __init__(self):
        self.running: set[str] = set()
        self.tokens = 0

    def on_arrival(self, request):
        self.running.add(request.id)

    def on_step(self, report):
        self.tokens += report.shape.tokens

    def on_finish(self, request, output):
        self.running.discard(request.id)


def verdict(observer: type[Observer]) -> list[str]:
    class Contract(ObserverContract):
        def make(self) -> Observer:
            return observer()

    return failures(Contract)


def test_a_good_observer_passes() -> None:
    assert verdict(Counter) == []


class Misspelt(Counter):
    def on_finished(self, request, output):
        self.running.discard(request.id)


class Deaf(Observer):
    pass


class MissesArguments(Counter):
    def on_cache(self):  # type: ignore[override]
        pass


class ExpectsTokens(Counter):
    def on_finish(self, request, output):
        self.tokens = output.token_ids[-1]


class ExpectsArrival(Counter):
    def on_finish(self, request, output):
        self.running.remove(request.id)


class StopsOnce(Counter):
    def on_start(self, description):
        self.file = ["open"]

    def on_stop(self):
        self.file.pop()


class Renames(Counter):
    def on_arrival(self, request):
        super().on_arrival(request)
        request.tenant = "seen"


class EmptiesEvents(Counter):
    def on_cache(self, events):
        while events:
            self.tokens += events.pop().pages


class Writes(Counter):
    """As slow as a disk that waits for its platters."""

    def on_step(self, report):
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("observer", "test"),
    [
        (Misspelt, "test_it_listens_to_something_that_happens"),
        (Deaf, "test_it_listens_to_something_that_happens"),
        (MissesArguments, "test_it_follows_a_request_from_start_to_end"),
        (ExpectsTokens, "test_every_end_of_a_request_is_borne"),
        (ExpectsArrival, "test_it_may_come_in_the_middle"),
        (StopsOnce, "test_an_engine_may_stop_before_it_did_anything"),
        (Renames, "test_what_it_is_told_stays_as_it_is"),
        (EmptiesEvents, "test_what_it_is_told_stays_as_it_is"),
        (Writes, "test_it_does_not_block"),
    ],
)
def test_an_observer_that_breaks_a_promise_is_rejected(observer: type[Observer], test: str) -> None:
    assert test in verdict(observer)
