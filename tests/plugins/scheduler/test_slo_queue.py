"""What `slo` keeps of those that wait, and when it sends others away until."""

from __future__ import annotations

from camshaft.plugins.scheduler.components import SloSettings
from camshaft.plugins.scheduler.slo.retry import Retry
from camshaft.plugins.scheduler.slo.scheduler import Slo
from camshaft.testing.engines import make_request, model_free_engine


def test_a_retry_is_when_the_queue_has_drained_at_the_rate_of_late() -> None:
    retry = Retry()
    assert retry.after_s(1000) == 1.0  # nothing is known
    for second in range(21):
        retry.pass_time(100.0 + second)
        retry.answered()
    assert retry.after_s(21) == 20.0
    assert retry.after_s(0) == 1.0
    assert retry.after_s(10_000) == 60.0


def test_a_rate_of_long_ago_is_forgotten() -> None:
    retry = Retry()
    for second in range(60):  # one a second
        retry.pass_time(float(second))
        retry.answered()
    for second in range(60, 600):  # and then one in ten
        retry.pass_time(float(second))
        if second % 10 == 0:
            retry.answered()
    assert 8 < retry.after_s(1) < 12


def test_requests_that_left_are_not_kept() -> None:
    scheduler: list[Slo] = []

    def make(limits):
        scheduler.append(Slo(SloSettings(ttft_s=1000.0), limits))
        return scheduler[0]

    engine = model_free_engine(make, max_running=1, debug=False)
    engine.submit(make_request("running", [5] * 4, 200))
    for _ in range(2):
        engine.step()
    for number in range(2000):
        engine.submit(make_request(f"r{number}", [5] * 4))
        engine.abort(f"r{number}")
    queue = scheduler[0]._queue
    assert not queue._places
    assert len(queue._by_key) < 100
    assert len(queue._by_latest) + len(queue._by_arrival) < 200
