from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from camshaft.contracts.predictor import StepShape
from camshaft.contracts.scheduler import Scheduler, SchedulerLimits
from camshaft.executor.null import NullExecutor
from camshaft.loop.clock import VirtualClock
from camshaft.loop.engine import Engine
from camshaft.plugins.cache.components import PagedSettings
from camshaft.plugins.cache.paged import Paged
from camshaft.plugins.scheduler.components import ContinuousSettings, SloSettings
from camshaft.plugins.scheduler.continuous import Continuous
from camshaft.plugins.scheduler.slo.scheduler import Slo
from camshaft.request import RequestOutput
from camshaft.testing.engines import collect, make_request, model_free_engine
from camshaft.testing.scheduler import SchedulerContract
from camshaft.testing.timed import LawPredictor, TimedExecutor


def slo(limits: SchedulerLimits, **settings: Any) -> Slo:
    return Slo(SloSettings.model_validate(settings), limits)


def continuous(limits: SchedulerLimits) -> Continuous:
    return Continuous(ContinuousSettings(), limits)


class TestContract(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return slo(limits)


class TestContractOfAgedRequests(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return slo(limits, aging_s=1e-6, aging_every=1)


class TestContractOfLateRequests(SchedulerContract):
    def make(self, limits: SchedulerLimits) -> Scheduler:
        return slo(limits, admission="queue", ttft_s=1e-6, tpot_s=1e-6, preempt_at=0)


def law(shape: StepShape) -> float:
    """A step takes 10 ms and 1 ms for each token."""
    return 0.010 + 0.001 * shape.tokens


class Timed:
    """An engine whose steps take time. Prompts follow from names, and differ."""

    def __init__(self, make: Any = slo, *, step_tokens: int = 32, **options: Any) -> None:
        settings = {"margin": 1.0, **options.pop("settings", {})} if make is slo else {}
        self.clock = VirtualClock(start=100.0)
        self.engine: Engine = model_free_engine(
            lambda limits: make(limits, **settings),
            executor=TimedExecutor(NullExecutor(token=7), self.clock, law),
            clock=self.clock,
            predictor=LawPredictor(law),
            step_tokens=step_tokens,
            pages=options.pop("pages", 500),
            **options,
        )
        self.results: dict[str, RequestOutput] = {}
        self.first: dict[str, float] = {}
        self.ended: list[str] = []

    def submit(self, name: str, prompt: int, outputs: int = 2, **fields: Any) -> None:
        first = sum(map(ord, name)) * 37
        prompt_ids = [(first + place) % 900 for place in range(prompt)]
        self.engine.submit(make_request(name, prompt_ids, outputs, **fields))

    def step(self) -> dict[str, int]:
        """Do a turn; return the shares of the step that was planned."""
        outputs = self.engine.step()
        collect(outputs, self.results)
        for one in outputs:
            if one.token_ids:
                self.first.setdefault(one.id, self.clock.now())
            if one.finish:
                self.ended.append(one.id)
        if not self.engine.flying:
            return {}
        columns = self.engine.flying[-1].columns
        names = [state.request.id for state in columns.states]
        return dict(zip(names, columns.tokens.tolist(), strict=True))

    def run(self) -> None:
        while self.engine.has_work:
            self.step()


def test_the_more_urgent_priority_goes_first_whoever_has_less_slack() -> None:
    timed = Timed()
    timed.submit("low", 20, priority=1, ttft_slo_s=1.0)
    timed.submit("high", 20, priority=0, ttft_slo_s=5.0)
    assert timed.step() == {"high": 20, "low": 12}


def test_among_equals_the_least_slack_goes_first() -> None:
    timed = Timed()
    timed.submit("none", 10)
    timed.submit("lax", 10, ttft_slo_s=5.0)
    timed.submit("tight", 10, ttft_slo_s=1.0)
    timed.submit("Late", 20, ttft_slo_s=1.005)  # later due, but it takes 10 ms more, twice
    assert timed.step() == {"Late": 20, "tight": 10, "lax": 2}


def test_an_urgent_prompt_overtakes_one_that_is_being_computed() -> None:
    timed = Timed()
    timed.submit("long", 100, priority=1)
    assert timed.step() == {"long": 32}
    timed.submit("short", 20)
    assert timed.step() == {"short": 20, "long": 12}
    assert timed.step() == {"short": 1, "long": 31}


def test_a_request_that_cannot_be_in_time_is_refused_and_told_when_to_come_back() -> None:
    timed = Timed()
    timed.submit("huge", 100, ttft_slo_s=0.1)
    timed.submit("fits", 10, ttft_slo_s=0.1)
    assert timed.step() == {"fits": 10}
    refused = timed.results["huge"]
    assert refused.finish == "refused"
    assert refused.message == (
        "the first token is wanted within 0.1 s and could come after 0.182 s"
    )


def test_a_request_is_refused_once_it_has_waited_too_long_and_no_sooner() -> None:
    timed = Timed(max_running=1)
    timed.submit("running", 10, outputs=100)
    timed.step()
    timed.submit("waiting", 10, ttft_slo_s=0.3)
    while "waiting" not in timed.results:
        timed.step()
    # 10 tokens take 20 ms, and reading the first one a step more
    assert 0.26 < timed.clock.now() - 100 < 0.29
    timed.run()
    assert timed.results["running"].finish == "length"


def test_late_requests_may_wait_behind_those_that_can_be_in_time() -> None:
    timed = Timed(settings={"admission": "queue"})
    timed.submit("huge", 100, ttft_slo_s=0.1)
    timed.submit("fits", 10, ttft_slo_s=0.2)
    assert timed.step() == {"fits": 10, "huge": 22}
    timed.run()
    assert timed.results["huge"].finish == "length"


def test_a_default_time_per_token_needs_a_predictor() -> None:
    for one in (SloSettings(), SloSettings(tpot_s=0.1)):
        assert Slo.supports(one, predicts=True) == []
    assert Slo.supports(SloSettings(ttft_s=1), predicts=False) == []
    [reason] = Slo.supports(SloSettings(tpot_s=0.1), predicts=False)
    assert reason == "`tpot_s` needs to know how long a step takes: name a `predictor`"


@pytest.mark.parametrize("make", [slo, continuous])
def test_long_prompts_do_not_slow_down_a_stream_that_wants_a_time(make: Any) -> None:
    timed = Timed(make, step_tokens=500)
    timed.submit("stream", 4, outputs=11, tpot_slo_s=0.05)
    timed.step()
    timed.submit("one", 400)
    timed.submit("other", 400)
    while "stream" not in timed.ended:
        timed.step()
    per_token = (timed.clock.now() - timed.first["stream"]) / 10
    assert (per_token <= 0.05) == (make is slo)
    timed.run()
    assert timed.results["other"].finish == "length"


def test_a_stream_is_kept_in_time_from_its_second_token_on() -> None:
    timed = Timed(step_tokens=500)
    timed.submit("stream", 400, outputs=10, tpot_slo_s=0.05)  # 410 ms until its first
    for _ in range(2):
        timed.step()
    timed.submit("other", 400)
    shares = timed.step()
    assert 30 <= shares["other"] <= 90  # 11 ms are spent, and twice 50 ms are the most


def pressed(step_tokens: int = 500, **stream: Any) -> Timed:
    """A stream that has run for a while, and an urgent prompt that just can be in time."""
    timed = Timed(step_tokens=step_tokens)
    timed.submit("stream", 10, outputs=60, **{"priority": 1, **stream})
    for _ in range(21):
        timed.step()
    timed.submit("urgent", 150, ttft_slo_s=0.37)
    return timed


def test_a_less_urgent_stream_that_is_ahead_of_its_time_waits_for_an_urgent_prompt() -> None:
    timed = pressed(tpot_slo_s=0.05)  # it had a token every 11 ms
    asked = timed.clock.now()
    assert timed.step() == {"urgent": 150}
    assert timed.step() == {"urgent": 1, "stream": 1}
    timed.run()
    assert timed.first["urgent"] - asked < 0.37


@pytest.mark.parametrize(
    "stream",
    [{"tpot_slo_s": 0.0112}, {"tpot_slo_s": 0.05, "priority": 0}],
    ids=["not ahead", "as urgent"],
)
def test_other_streams_go_on_beside_it(stream: dict[str, Any]) -> None:
    timed = pressed(**stream)
    assert {"stream", "urgent"} <= set(timed.step())


def test_streams_that_want_no_time_miss_every_other_step() -> None:
    timed = pressed(step_tokens=100)
    shares = [timed.step() for _ in range(2)]
    assert ["urgent" in one for one in shares] == [True, True]
    assert sorted("stream" in one for one in shares) == [False, True]


def test_a_stream_that_cannot_have_its_time_holds_nobody_up() -> None:
    timed = Timed(step_tokens=100)
    timed.submit("stream", 4, outputs=40, tpot_slo_s=0.010)  # a step alone takes 11 ms
    timed.step()
    timed.submit("Prompt", 80)
    assert timed.step() == {"stream": 1, "Prompt": 80}


def test_nobody_starts_to_decode_who_would_make_the_others_late() -> None:
    timed = Timed(step_tokens=100)
    for name in "abcde":
        timed.submit(name, 4, outputs=20, tpot_slo_s=0.0131)
    most = 0
    while timed.engine.has_work:
        timed.step()
        most = max(most, len(timed.engine.view.running))
    assert most == 3  # three decodes take 13 ms


def test_an_urgent_request_takes_the_slot_of_the_least_urgent() -> None:
    timed = Timed(max_running=2)
    timed.submit("low", 10, outputs=50, priority=2)
    timed.submit("middle", 10, outputs=50, priority=1)
    for _ in range(4):
        timed.step()
    timed.submit("high", 10, outputs=3, ttft_slo_s=0.3)
    timed.run()
    assert timed.ended == ["high", "middle", "low"]
    assert timed.engine.stats.preemptions == {"urgent": 1}
    assert [len(timed.results[name].token_ids) for name in timed.ended] == [3, 50, 50]


def test_SCH_03_the_most_urgent_waits_for_no_slot_and_all_end() -> None:
    timed = Timed(max_running=2, pages=60, settings={"admission": "queue"})
    levels = {"a": 10, "b": 10, "c": 10, "d": 10, "e": 0, "f": 0, "g": 0, "h": -5}
    for name, priority in levels.items():
        wanted = {"ttft_slo_s": 0.3} if priority < 10 else {}
        timed.submit(name, 20, outputs=40 if priority == 10 else 5, priority=priority, **wanted)
        timed.step()  # each takes 10 ms and more
    timed.run()
    assert sorted(timed.ended) == sorted(levels)
    assert timed.ended[4:] == ["a", "b", "c", "d"]  # whoever gave way goes on before the others
    assert "h" in timed.ended[:4]
    for level in ("abcd", "efg"):
        starts = [timed.first[name] for name in level]
        assert starts == sorted(starts)
    assert timed.engine.stats.preemptions["urgent"] >= 2
    assert {len(timed.results[name].token_ids) for name in "abcd"} == {40}


def test_who_gave_way_goes_on_from_the_pages_that_the_cache_still_has() -> None:
    timed = Timed(max_running=1, cache=lambda spec: Paged(PagedSettings(), spec))
    timed.submit("low", 40, outputs=60, priority=1)
    for _ in range(20):
        timed.step()
    timed.submit("high", 10, ttft_slo_s=0.2)
    timed.run()
    assert timed.ended == ["high", "low"]
    once = (40 + 59) + (10 + 1)  # the last token of each is not computed
    assert timed.engine.stats.step_tokens - once <= 4 + 2  # a page, and what was in flight


@pytest.mark.parametrize(
    ("priority", "settings"), [(0, {}), (1, {"preemption": "off"})], ids=["equal", "off"]
)
def test_equals_do_not_give_way_nor_anybody_where_it_is_off(
    priority: int, settings: dict[str, Any]
) -> None:
    timed = Timed(max_running=1, settings=settings)
    timed.submit("first", 10, outputs=50, priority=priority)
    timed.step()
    timed.submit("second", 10, ttft_slo_s=5.0)
    timed.run()
    assert timed.ended == ["first", "second"]
    assert not timed.engine.stats.preemptions


def test_nobody_is_preempted_while_there_is_slack() -> None:
    timed = Timed(max_running=1)
    timed.submit("low", 10, outputs=50, priority=1)
    timed.step()
    timed.submit("high", 10, ttft_slo_s=2.0)  # half of which is longer than `low` takes
    timed.run()
    assert timed.ended == ["low", "high"]
    assert timed.first["high"] - 100 < 2.0


def test_the_least_urgent_gives_way_when_pages_run_out() -> None:
    timed = Timed(pages=8, depth=0)
    timed.submit("low", 8, outputs=16, priority=1)
    timed.submit("high", 8, outputs=16)
    timed.run()
    assert timed.ended == ["high", "low"]
    assert timed.engine.stats.preemptions["no_space"] > 0


def test_one_that_waits_for_pages_leaves_the_tokens_to_those_that_have_them() -> None:
    timed = Timed(step_tokens=1, pages=3, depth=0)
    timed.submit("running", 11, outputs=1)
    for _ in range(9):
        timed.step()  # it has all pages, and two tokens of its prompt left
    timed.submit("waiting", 3, ttft_slo_s=100.0)
    timed.run()
    assert [timed.results[name].finish for name in timed.ended] == ["length", "length"]


class Pressed(Timed):
    """There are always four more urgent requests that wait."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.starts: list[str] = []
        self.times: list[float] = []
        self._names = itertools.count()

    def press(self) -> None:
        while sum(one.priority < 0 for one in self.engine.view.waiting) < 4:
            self.submit(f"urgent {next(self._names)}", 20, priority=-1)
        self.step()
        for name in [one.request.id for one in self.engine.view.admitted.values()]:
            if name not in self.starts:
                self.starts.append(name)
                self.times.append(self.clock.now())


def test_the_oldest_gets_a_turn_after_a_while_and_is_run_to_its_end() -> None:
    pressed = Pressed(max_running=2, settings={"aging_s": 5.0, "aging_every": 4})
    pressed.submit("patient", 20, outputs=30)
    while "patient" not in pressed.ended:
        pressed.press()
    assert 5.0 <= pressed.times[pressed.starts.index("patient")] - 100 < 5.3
    assert not pressed.engine.stats.preemptions


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    every=st.integers(1, 6),
    slots=st.integers(1, 4),
    pages=st.sampled_from([40, 500]),
    depth=st.integers(0, 2),
)
def test_nobody_starves_under_a_stream_of_more_urgent_requests(
    lengths: list[int], every: int, slots: int, pages: int, depth: int
) -> None:
    """Once it is old, each starts after at most `every` starts for each that came before it."""
    aging = {"aging_s": 2.0, "aging_every": every}
    pressed = Pressed(max_running=slots, pages=pages, depth=depth, debug=False, settings=aging)
    names = [f"low {number}" for number in range(len(lengths))]
    for name, length in zip(names, lengths, strict=True):
        pressed.submit(name, length, outputs=5, priority=3)
    while not set(names) <= set(pressed.ended):
        pressed.press()
        assert pressed.clock.now() < 200
    old = sum(when < 102.0 for when in pressed.times)
    for place, name in enumerate(names):
        # those of a step are started together, and it may be old by the end of it
        assert pressed.starts.index(name) - old <= every * (place + 1) + slots


def test_who_got_its_turn_is_not_preempted_by_the_urgent() -> None:
    timed = Timed(max_running=1, settings={"aging_s": 0.5, "aging_every": 1})
    timed.submit("urgent 0", 10, outputs=60)
    timed.submit("patient", 10, outputs=60, priority=5)
    while "patient" not in timed.first:
        timed.step()
    timed.submit("urgent 1", 10, ttft_slo_s=0.4)
    timed.run()
    assert timed.ended == ["urgent 0", "urgent 1", "patient"]  # refused: it could not be in time
    assert timed.results["urgent 1"].finish == "refused"
