"""The contract of observers, as tests to inherit."""

from __future__ import annotations

import copy
import statistics
import time
from typing import TYPE_CHECKING, get_args

from ..contracts.cache import CacheEvent
from ..contracts.observer import Observer
from ..contracts.predictor import StepShape
from ..contracts.scheduler import StepReport
from ..request import FinishReason, RequestOutput
from .engines import make_request

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS = [name for name in vars(Observer) if name.startswith("on_")]
"""Every call that there is."""


class ObserverContract:
    """Subclass it, define `make`, and run pytest.

    An observer that raises is dropped by the engine and its user learns nothing more, so most tests
    try situations in which it might.
    """

    def make(self) -> Observer:
        """Return the observer under test."""
        raise NotImplementedError

    def test_it_listens_to_something_that_happens(self) -> None:
        """A method that the engine does not know, such as a misspelt one, is never called."""
        listens = [name for name in dir(type(self.make())) if name.startswith("on_")]
        assert sorted(set(listens) - set(EVENTS)) == []
        overridden = [
            name for name in listens if getattr(type(self.make()), name) is not vars(Observer)[name]
        ]
        assert overridden, f"it overrides none of {', '.join(EVENTS)}"

    def test_it_follows_a_request_from_start_to_end(self) -> None:
        """Every call, in the order of an engine's life."""
        for _, call in calls(self.make()):
            call()

    def test_every_end_of_a_request_is_borne(self) -> None:
        """Also one without a single token, and one with a message."""
        observer = self.make()
        request = make_request("a", [1, 2, 3])
        for finish in get_args(FinishReason):
            observer.on_arrival(request)
            observer.on_finish(request, RequestOutput(id="a", finish=finish, message="because"))

    def test_it_may_come_in_the_middle(self) -> None:
        """Ends of requests whose arrival it did not see; steps before any start."""
        for name, call in calls(self.make()):
            if name not in {"on_start", "on_arrival"}:
                call()

    def test_an_engine_may_stop_before_it_did_anything(self) -> None:
        """And be stopped twice."""
        observer = self.make()
        observer.on_start({})
        observer.on_stop()
        observer.on_stop()

    def test_what_it_is_told_stays_as_it_is(self) -> None:
        """Requests and outputs are the engine's own."""
        observer = self.make()
        request = make_request("a", [1, 2, 3], seed=7)
        output = RequestOutput(id="a", token_ids=[4, 5], finish="length")
        description: dict[str, object] = {"recipe": {"model": {"name": "toy"}}, "model": "toy"}
        events = [CacheEvent("stored", 0, 3, "")]
        told = (request, output, description, events)
        before = copy.deepcopy(told)
        observer.on_start(description)
        observer.on_arrival(request)
        observer.on_cache(events)
        observer.on_finish(request, output)
        observer.on_stop()
        assert told == before

    def test_it_does_not_block(self) -> None:
        """It is called from the engine's thread, between steps: 5 ms, at most, in the middle."""
        observer = self.make()
        observer.on_start({})
        for name, call in calls(observer):
            times = []
            for _ in range(20):
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            took = statistics.median(times)
            assert took < 5e-3, f"{name} took {took * 1e3:.1f} ms"


def calls(observer: Observer) -> list[tuple[str, Callable[[], None]]]:
    """Return a call for each event, with plausible arguments, in an engine's order."""
    request = make_request("a", [1, 2, 3], max_tokens=2)
    output = RequestOutput(id="a", token_ids=[7, 7], finish="length", cached_tokens=0)
    report = StepReport(1, StepShape(1, 3, 0, 3, 1), 0.01)
    events = [CacheEvent("stored", 0, 2, ""), CacheEvent("evicted", 0, 1, "no space")]
    return [
        ("on_start", lambda: observer.on_start({"recipe": {}, "model": "toy"})),
        ("on_arrival", lambda: observer.on_arrival(request)),
        ("on_step", lambda: observer.on_step(report)),
        ("on_cache", lambda: observer.on_cache(events)),
        ("on_finish", lambda: observer.on_finish(request, output)),
        ("on_stop", observer.on_stop),
    ]
