"""Workers, turns and quiet, with peers that have no model."""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import quiet as quiet_module
from benchmarks.peers.camshaft_worker import Camshaft
from benchmarks.peers.configurations import check_python, llama_cpp, openvino, ours
from benchmarks.peers.protocol import Answer, Question
from benchmarks.peers.quiet import Moment, Quiet, busy_seconds
from benchmarks.peers.turns import Turns
from benchmarks.peers.work import figure, leading, questions
from benchmarks.peers.worker import Configuration, PeerError, Worker

TWO = Question([[1, 2], [3, 4]], 3)
BUSY = Quiet(most_foreign=1.0, tries=1, patience_s=0.0, cores=2)


def fake(recipe: str = "plain", engine: str = "fake", **options: Any) -> Configuration:
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words = [word.replace("_", "-") for word in words]
    return Configuration(
        engine, recipe, (sys.executable, "-m", "tests.benchmarks.fake_peer", *words)
    )


@pytest.fixture
def start(tmp_path: Path):
    running = []

    def make(longest_s: float = 20.0, **options: Any) -> Worker:
        running.append(Worker(fake(**options), str(tmp_path), longest_s))
        return running[-1]

    yield make
    for worker in running:
        worker.close()


def turns(tmp_path: Path, *configurations: Configuration) -> Turns:
    return Turns(configurations, BUSY, str(tmp_path), 1000, 20.0)


def test_a_worker_answers_with_its_own_times_whatever_libraries_print(start) -> None:
    worker = start(mode="chatty")
    answer = worker.ask(TWO)
    assert answer == Answer(0.01, 0.03, [[7, 8, 9], [7, 8, 9]])
    assert worker.ask(TWO) == answer
    assert worker.versions() == {"numpy": version("numpy")}


def test_a_question_that_fails_is_told_and_the_next_one_is_answered(start) -> None:
    worker = start(most_streams=1)
    with pytest.raises(PeerError, match=r"fake \(plain\) failed(.|\n)*no room for 2 streams"):
        worker.ask(TWO)
    assert worker.ask(Question([[1]], 1)).ids == [[7]]


@pytest.mark.parametrize(
    ("mode", "told"),
    [
        ("dying", r"fake \(plain\) ended with 1; it said last:\nno such instruction"),
        ("stuck", r"fake \(plain\) took more than 1 s"),
        ("short", r"gave \[2\] tokens to 2 prompts, not 3 to 2"),
    ],
)
def test_a_worker_that_does_not_do_its_work_is_an_error(start, mode: str, told: str) -> None:
    with pytest.raises(PeerError, match=told):
        start(mode=mode, longest_s=1.0 if mode == "stuck" else 20.0).ask(TWO)


def test_memory_is_that_of_the_process(start) -> None:
    worker = start()
    worker.ask(TWO)
    pss, rss = worker.memory_mb()
    assert 2 < pss <= rss < 200


def test_configurations_far_from_a_peers_best_are_left_after_the_first_round(
    tmp_path: Path,
) -> None:
    ours_slow = fake("ours", "camshaft", seconds_a_token=0.5)
    slow, near = fake("slow", seconds_a_token=0.02), fake("near", seconds_a_token=0.012)
    best = fake("best", seconds_a_token=0.01)
    with turns(tmp_path, ours_slow, slow, near, best) as run:
        run.run("cpu-single", 2)
    rates = run.found["cpu-single", "out_tok_s"]
    assert {one.recipe: len(values) for one, values in rates.items()} == {
        "ours": 2,
        "near": 2,
        "best": 2,
    }
    assert rates[best] == pytest.approx([100.0, 100.0])
    assert run.versions[best] == {"numpy": version("numpy")}


def test_a_configuration_that_fails_is_left_out_and_the_last_one_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow, wide = fake("narrow", most_streams=4), fake("wide")
    with turns(tmp_path, narrow, wide) as run:
        run.run("cpu-batch8", 1)
        assert run.by_name()["cpu-batch8", "out_tok_s"] == {("fake", "wide"): [pytest.approx(800)]}
        assert "left out: fake (narrow) failed" in capsys.readouterr().out
    with (
        turns(tmp_path, narrow) as run,
        pytest.raises(PeerError, match="no room for 8 streams"),
    ):
        run.run("cpu-batch8", 1)


def test_a_start_is_timed_in_every_round_and_its_memory_read_in_the_first(tmp_path: Path) -> None:
    run = turns(tmp_path, fake())
    begun = time.perf_counter()
    run.start(2)
    elapsed = time.perf_counter() - begun
    (times,) = run.found["cpu-start", "start_s"].values()
    (memory,) = run.found["cpu-start", "pss_mb"].values()
    assert (len(times), len(memory)) == (2, 1)
    assert 0.01 < min(times) < sum(times) < elapsed
    assert 2 < memory[0] < 200


def test_the_seconds_of_a_processor_leave_out_idling_and_count_what_is_stolen() -> None:
    tick = quiet_module._TICK_S
    stat = "cpu  100 10 50 7000 300 1 2 4 90 9\ncpu0 50 5 25 3500 150 0 1 2 45 4\n"
    assert busy_seconds(stat) == pytest.approx((100 + 10 + 50 + 1 + 2 + 4) * tick)


def test_others_have_what_the_measured_ones_have_not() -> None:
    before, after = Moment(10.0, 100.0, 40.0), Moment(12.0, 103.0, 42.6)
    assert before.foreign_share(after, cores=2) == pytest.approx(0.1)
    assert before.foreign_share(Moment(12.0, 102.0, 42.01), cores=2) == 0.0


def test_the_time_of_a_measured_process_is_its_own() -> None:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before = Moment.now([child.pid]).own_s
        time.sleep(0.4)
        assert Moment.now([child.pid]).own_s > before + 0.02
    finally:
        child.kill()
        child.wait()


def test_a_sample_is_taken_again_until_others_are_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def take_with(shares: list[float]) -> tuple[int, float]:
        left, numbers = iter(shares), iter(range(9))
        monkeypatch.setattr(Moment, "now", lambda _=(): Moment(0.0, 0.0, 0.0))
        monkeypatch.setattr(Moment, "foreign_share", lambda *_: next(left))
        quiet = Quiet(most_foreign=0.05, tries=3, patience_s=0.0, cores=2)
        return quiet.sample(lambda: next(numbers), list)

    assert take_with([0.3, 0.04]) == (1, 0.04)
    assert take_with([0.3, 0.1, 0.2]) == (1, 0.1)


def test_prompts_have_the_shape_of_their_workload_and_none_comes_twice() -> None:
    (batch,) = questions("cpu-batch8", 0, 1000)
    assert [len(prompt) for prompt in batch.prompts] == [128] * 8
    assert batch.outputs == 128
    prompts = [
        one.prompts[0] for number in range(3) for one in questions("cpu-prompt512", number, 1000)
    ]
    assert len({tuple(prompt) for prompt in prompts}) == 9
    assert {len(prompt) for prompt in prompts} == {512}


def test_figures_are_rates_after_the_first_token_over_all_and_times_of_the_first() -> None:
    single = Answer(first_s=1.0, whole_s=2.27, ids=[[5] * 128])
    assert figure("cpu-single", [single]) == pytest.approx(100.0)
    batch = Answer(first_s=1.0, whole_s=4.0, ids=[[5] * 128] * 8)
    assert figure("cpu-batch8", [batch]) == pytest.approx(256.0)
    firsts = [Answer(first_s, first_s, [[5]]) for first_s in (0.9, 0.2, 0.3)]
    assert figure("cpu-prompt512", firsts) == pytest.approx(300.0)
    assert leading([1, 2, 3], [1, 2, 4]) == 2


def test_our_worker_runs_a_recipe() -> None:
    answer = Camshaft("recipes/toy.yaml", []).generate(Question([[11, 12, 13], [14, 15, 16]], 4))
    assert [len(ids) for ids in answer.ids] == [4, 4]
    assert 0 < answer.first_s < answer.whole_s


def test_a_recipe_is_named_with_its_changes_and_runs_on_so_many_threads() -> None:
    one = ours("recipes/toy.yaml", ["seed=3"], 2)
    assert (one.engine, one.recipe) == ("camshaft", "recipes/toy.yaml seed=3")
    assert one.words[-4:] == ("--set", "seed=3", "--set", "hardware.threads=2")


def test_peers_run_the_file_as_it_is_and_recast(tmp_path: Path) -> None:
    assert {one.recipe for one in llama_cpp("python", None, 2)} == {
        "Q4_1, flash attention off",
        "Q4_1, flash attention on",
    }
    with pytest.raises(PeerError, match=r"int8 is missing; .* benchmarks.peers.prepare writes it"):
        openvino("python", tmp_path, 2)
    for name in ("int8", "int4"):
        (tmp_path / name).mkdir()
    recipes = {one.recipe for one in openvino("python", tmp_path, 2)}
    assert len(recipes) == 6
    assert "INT8, ContinuousBatchingPipeline" in recipes


def test_an_environment_without_a_peer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(words: list[str], **_: Any) -> Any:
        return subprocess.CompletedProcess(words, int("openvino_genai" in words[2]))

    monkeypatch.setattr(subprocess, "run", answer)
    check_python("python", ["llama.cpp"])
    with pytest.raises(PeerError, match="it has no openvino_genai; .*--without openvino"):
        check_python("python", ["llama.cpp", "openvino"])
    monkeypatch.undo()
    with pytest.raises(PeerError, match="/nowhere/python: No such file"):
        check_python("/nowhere/python", ["openvino"])
