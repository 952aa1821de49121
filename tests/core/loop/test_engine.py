from __future__ import annotations

from typing import Any

import pytest

from camshaft.contracts.cache import NoSpace
from camshaft.contracts.scheduler import (
    Item,
    Plan,
    RequestView,
    Scheduler,
    SchedulerLimits,
    View,
)
from camshaft.errors import RequestError
from camshaft.executor.null import NullExecutor
from camshaft.loop.commit import PlanError
from camshaft.request import RequestOutput
from camshaft.step import Step, StepOutput
from camshaft.testing.engines import collect, make_request, model_free_engine, run_to_end


class Simple(Scheduler):
    """Everything that is ready, in order, until the budget is spent."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits

    def plan(self, view: View) -> Plan:
        plan, budget, slots = Plan(), self.limits.step_tokens, view.free_slots
        for request in [*view.running, *view.waiting]:
            tokens = min(request.pending, budget)
            waiting = request not in view.running
            if request.ready and tokens and (slots or not waiting):
                plan.items.append(Item(request, tokens))
                budget -= tokens
                slots -= waiting
        return plan

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> RequestView | None:
        running = list(view.running)
        return running[-1] if requester in running and len(running) > 1 else None


def test_a_request_gets_its_tokens_and_leaves_nothing_behind() -> None:
    engine = model_free_engine(Simple)
    engine.submit(make_request("a", [3, 4, 5], max_tokens=4))
    results = run_to_end(engine)
    assert results["a"].token_ids == [7, 7, 7, 7]
    assert results["a"].finish == "length"
    assert engine.usage()[0].free == 64
    assert engine.slots.free == 8


@pytest.mark.parametrize("late", [1, 2])
def test_steps_overlap_and_no_result_is_read_before_it_is_due(late: int) -> None:
    engine = model_free_engine(Simple, depth=late, late_steps=late)
    engine.submit(make_request("a", [3, 4, 5], max_tokens=30))
    run_to_end(engine)
    assert engine.stats.most_in_flight == late + 1
    assert engine.parts.executor.most_late == late  # type: ignore[attr-defined]
    assert engine.stats.wasted_tokens == 0


def test_a_stop_id_seen_late_wastes_only_what_was_in_flight() -> None:
    engine = model_free_engine(Simple, depth=2, late_steps=2, executor=NullExecutor(token=2))
    engine.submit(make_request("a", [3, 4, 5], max_tokens=30))
    results = run_to_end(engine)
    assert results["a"].token_ids == [2]
    assert (results["a"].finish, results["a"].stop_id) == ("stop", 2)
    assert engine.stats.wasted_tokens == 2


def test_ignore_eos_keeps_the_requests_own_stop_ids() -> None:
    for stop, length in (((), 5), ((2,), 1)):
        engine = model_free_engine(Simple, executor=NullExecutor(token=2))
        request = make_request("a", [3], max_tokens=5, ignore_eos=True, stop_token_ids=stop)
        engine.submit(request)
        assert len(run_to_end(engine)["a"].token_ids) == length


def test_an_abort_frees_pages_at_any_moment() -> None:
    for steps in range(6):
        engine = model_free_engine(Simple, depth=1, late_steps=1)
        engine.submit(make_request("a", [3] * 40, max_tokens=30))
        for _ in range(steps):
            engine.step()
        engine.abort("a")
        results = run_to_end(engine)
        assert results["a"].finish == "abort"
        assert engine.usage()[0].free == 64


def test_an_unknown_abort_is_ignored() -> None:
    engine = model_free_engine(Simple)
    engine.abort("nobody")
    assert not engine.has_work


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([], None),
        ([1000], None),
        ([-1], None),
        ([5] * 256, "context_length_exceeded"),
    ],
)
def test_a_prompt_that_cannot_run_is_refused(prompt: list[int], code: str | None) -> None:
    engine = model_free_engine(Simple)
    with pytest.raises(RequestError) as refused:
        engine.submit(make_request("a", prompt))
    assert (refused.value.param, refused.value.code) == ("prompt", code)
    assert not engine.has_work


@pytest.mark.parametrize(
    "fields",
    [{"logit_bias": {1000: 1.0}}, {"stop_token_ids": (-1,)}, {"bad_words": ((5, 1000),)}],
)
def test_a_parameter_with_an_id_outside_the_vocabulary_is_refused(fields: dict[str, Any]) -> None:
    engine = model_free_engine(Simple)
    with pytest.raises(RequestError, match="is outside 0 to 999"):
        engine.submit(make_request("a", [5], **fields))


def test_output_is_cut_at_the_longest_sequence() -> None:
    engine = model_free_engine(Simple, room=10)
    engine.submit(make_request("a", [5] * 7, max_tokens=100))
    result = run_to_end(engine)["a"]
    assert (len(result.token_ids), result.finish) == (3, "length")


def test_two_live_requests_cannot_share_an_id() -> None:
    engine = model_free_engine(Simple)
    engine.submit(make_request("a", [5]))
    with pytest.raises(RequestError, match="in use"):
        engine.submit(make_request("a", [5]))
    run_to_end(engine)
    engine.submit(make_request("a", [5]))


class Failing(NullExecutor):
    """Raises on the third launch."""

    launches = 0

    def launch(self, step: Step) -> None:
        self.launches += 1
        if self.launches == 3:
            raise RuntimeError("out of memory")
        super().launch(step)


def test_a_step_that_cannot_be_launched_ends_its_requests_only() -> None:
    engine = model_free_engine(Simple, executor=Failing(token=7), depth=1)
    engine.submit(make_request("a", [5] * 4, max_tokens=9))
    outputs = [one for _ in range(3) for one in engine.step()]
    assert (outputs[-1].id, outputs[-1].finish) == ("a", "error")
    assert "out of memory" in outputs[-1].message
    engine.submit(make_request("b", [5] * 4, max_tokens=9))
    assert run_to_end(engine)["b"].finish == "length"


class FailingChoice(NullExecutor):
    """Raises at the third choice, when the step is launched already."""

    choices = 0

    def sample(self, step: int, masks: Any = None) -> None:
        self.choices += 1
        if self.choices == 3:
            del self._steps[step]
            raise RuntimeError("out of memory")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_step_without_a_choice_ends_its_requests_only(depth: int) -> None:
    """One of them is done by then; a later request gets the slots and pages."""
    engine = model_free_engine(Simple, executor=FailingChoice(token=7), depth=depth, pages=6)
    engine.submit(make_request("a", [5] * 4, max_tokens=9))
    engine.submit(make_request("short", [5] * 4, max_tokens=2))
    results: dict[str, RequestOutput] = {}
    for _ in range(4):
        collect(engine.step(), results)
    assert results["a"].finish == "error"
    assert "out of memory" in results["a"].message
    assert results["short"].finish == "length"
    assert not engine.flying
    engine.submit(make_request("b", [5] * 4, max_tokens=20))
    assert run_to_end(engine)["b"].finish == "length"
    assert [pool.in_use + pool.pinned for pool in engine.usage()] == [0]


class NotFinite(NullExecutor):
    """Reports logits that are not finite for the request in slot 0."""

    def launch(self, step: Step) -> None:
        super().launch(step)
        self._steps[step.id].finite = step.slots != 0


def test_logits_that_are_not_finite_end_only_their_request() -> None:
    engine = model_free_engine(Simple, executor=NotFinite(token=7))
    for name in ("a", "b"):
        engine.submit(make_request(name, [5] * 4))
    results = run_to_end(engine)
    assert (results["a"].finish, results["b"].finish) == ("error", "length")
    assert "not finite" in results["a"].message


def test_a_request_that_needs_host_tokens_delays_its_own_sample_launch() -> None:
    engine = model_free_engine(Simple, depth=1, late_steps=1)
    request = make_request("a", [5] * 4, max_tokens=6)
    request.needs_host_tokens = True
    engine.submit(request)
    results = run_to_end(engine)
    assert len(results["a"].token_ids) == 6
    assert engine.stats.host_waits > 0


class Greedy(Simple):
    """Plans more than there is."""

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        plan.items = [item._replace(tokens=item.tokens + 1) for item in plan.items]
        return plan


def test_a_plan_that_breaks_the_rules_names_the_scheduler() -> None:
    engine = model_free_engine(Greedy)
    engine.submit(make_request("a", [5] * 4))
    with pytest.raises(PlanError, match="Greedy: request 1 got 5 tokens, it has 4 pending"):
        engine.step()


class Drafting(Simple):
    """Asks for drafts without a speculator."""

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        plan.items = [item._replace(drafts=2) for item in plan.items]
        return plan


def test_what_this_version_does_not_run_is_refused_not_ignored() -> None:
    engine = model_free_engine(Drafting)
    engine.submit(make_request("a", [5] * 4))
    with pytest.raises(PlanError, match="drafts .* are not run"):
        engine.step()


class Idle(Simple):
    """Never plans anything."""

    def plan(self, view: View) -> Plan:
        return Plan()


def test_a_scheduler_that_leaves_ready_requests_alone_is_an_error() -> None:
    engine = model_free_engine(Idle)
    engine.submit(make_request("a", [5] * 4))
    with pytest.raises(PlanError, match="its plan is empty"):
        engine.step()


class Stubborn(Simple):
    """Never gives up a page, and never gets one either."""

    def victim(self, view: View, requester: RequestView, need: NoSpace) -> RequestView | None:
        return None


def test_requests_that_block_each_other_for_ever_are_ended_not_kept() -> None:
    engine = model_free_engine(Stubborn, pages=4, page_tokens=4)
    for name in ("a", "b"):
        engine.submit(make_request(name, [5] * 7, max_tokens=8))
    results = run_to_end(engine, most_steps=200)
    assert sorted(str(one.finish) for one in results.values()) == ["error", "length"]


class Swapped(NullExecutor):
    """Answers with the step's id, so that order shows."""

    def wait(self, step: int) -> StepOutput:
        output = super().wait(step)
        output.tokens[:] = 100 + step
        return output


def test_tokens_arrive_in_launch_order() -> None:
    engine = model_free_engine(Simple, depth=2, late_steps=2, executor=Swapped())
    engine.submit(make_request("a", [5] * 4, max_tokens=5))
    assert run_to_end(engine)["a"].token_ids == [101, 102, 103, 104, 105]
