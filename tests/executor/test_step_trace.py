"""A step that was kept runs again on a fresh device with the same result."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.compose import compose
from camshaft.executor.step_trace import trace
from camshaft.executor.trace_files import TraceError, TraceOrder, read_trace
from camshaft.plugins.lab.rerun import rerun, rerun_recipe
from camshaft.plugins.lab.subject import executor_of
from camshaft.registry import Registry
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, LLAMA, compose_toy, pool

MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": (LLAMA, {}),
    "windows": (HYBRID, {}),
    "late by two": (
        LLAMA, {"engine": {"depth": 2, "executor": {"use": "late", "late_steps": 2}}},
    ),
    "preempted in chunks": (
        LLAMA, {"cache": {"memory": pool(30)}, "scheduler": {"step_tokens": 16}},
    ),
    "int8 pages": (LLAMA, {"quant": {"kv": "int8"}}),
}  # fmt: skip


def traced(model: Any, changes: Any, order: TraceOrder) -> Any:
    composed = compose_toy(model, changes)
    parts, recipe = composed.engine.parts, composed.drawing.recipe
    parts.executor = trace(
        parts.executor,
        order,
        recipe=recipe.as_mapping(),
        recipe_name="toy",
        page_tokens=composed.memory.page_tokens,
    )
    return composed.engine


def submit_many(engine: Any) -> None:
    """Prompts that begin alike, greedy, drawn, and with parameters that look back."""
    chance = random.Random(3)
    common = [chance.randrange(256) for _ in range(12)]
    for number in range(7):
        prompt = [*common, *(chance.randrange(256) for _ in range(chance.randint(1, 20)))]
        how = ({}, {"temperature": 0.9, "seed": number}, {"frequency_penalty": 0.7})[number % 3]
        engine.submit(make_request(f"r{number}", prompt, 12, ignore_eos=True, **how))


def again(folder: Path, **options: Any) -> tuple[Any, Any]:
    head, arrays = read_trace(folder)
    composed = compose(rerun_recipe(head, Registry.discover(), **options))
    return head, rerun(executor_of(composed, "trace"), head, arrays)


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_step_gives_the_same_tokens_again(mode: str, tmp_path: Path) -> None:
    chosen = 0
    for number in (1, 4, 9):
        folder = tmp_path / str(number)
        engine = traced(*MODES[mode], TraceOrder(str(folder), number))
        submit_many(engine)
        run_to_end(engine)
        engine.close()
        head, found = again(folder)
        chosen += sum(len(row.chosen) for row in head.rows)
        assert found.differing(head) == []
        assert max(found.logit_errors, default=0) < 1e-4
        assert [one.what for one in found.layers[:2]] == ["qkv", "attended"]
    assert chosen > 5


def test_it_changes_no_answer_and_keeps_one_step(tmp_path: Path) -> None:
    wanted, got = compose_toy().engine, traced(LLAMA, {}, TraceOrder(str(tmp_path), 3))
    for engine in wanted, got:
        submit_many(engine)
    assert run_to_end(got) == run_to_end(wanted)
    first = (tmp_path / "trace.json").read_bytes()
    submit_many(got)
    run_to_end(got)
    assert (tmp_path / "trace.json").read_bytes() == first


def poisoned(engine: Any, monkeypatch: pytest.MonkeyPatch, after: int, what: Any) -> None:
    """Let the head of the model fail in one step."""
    model, calls = engine.parts.executor.inner.parts.model, []
    logits = model.logits

    def failing(*args: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == after:
            if isinstance(what, Exception):
                raise what
            return torch.full_like(logits(*args), what)
        found: torch.Tensor = logits(*args)
        return found

    monkeypatch.setattr(model, "logits", failing)


def test_the_first_step_without_finite_logits_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = traced(LLAMA, {}, TraceOrder(str(tmp_path), None))
    poisoned(engine, monkeypatch, 5, torch.nan)
    submit_many(engine)
    ended = run_to_end(engine)
    assert "error" in {one.finish for one in ended.values()}
    monkeypatch.undo()
    head, found = again(tmp_path)
    assert head.reason == "its logits are not finite"
    assert not any(row.finite for row in head.rows)
    assert found.differing(head) == list(range(len(head.rows))), "the fault is not in its input"
    assert all(row.finite for row in found.rows)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_step_that_raises_is_kept_with_the_tokens_that_led_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    whole = compose_toy().engine
    submit_many(whole)
    wanted = run_to_end(whole)
    engine = traced(LLAMA, {"engine": {"depth": depth}}, TraceOrder(str(tmp_path), None))
    poisoned(engine, monkeypatch, 6, RuntimeError("no kernel"))
    submit_many(engine)
    ended = run_to_end(engine)
    monkeypatch.undo()
    head, found = again(tmp_path)
    assert head.reason == "it raised RuntimeError: no kernel"
    failed = [name for name, one in ended.items() if one.finish == "error"]
    # what was in flight is lost to those whose step failed, and led to it all the same
    next_ids = {wanted[name].token_ids[len(ended[name].token_ids) + depth] for name in failed}
    assert {row.chosen[0] for row in found.rows} == next_ids


def test_more_pages_than_a_trace_may_have_are_not_written(tmp_path: Path, caplog: Any) -> None:
    engine = traced(LLAMA, {}, TraceOrder(str(tmp_path), 1))
    engine.parts.executor._most_bytes = 1
    submit_many(engine)
    run_to_end(engine)
    assert "is not traced: its pages have 0 MiB, and a trace at most 0 MiB" in caplog.text
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("trace")
    engine = traced(LLAMA, {}, TraceOrder(str(folder), 2))
    submit_many(engine)
    run_to_end(engine)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


DAMAGES = {
    "a bit": ("arrays.npz", lambda b: b[:900] + bytes([b[900] ^ 1]) + b[901:], "npz: its digest"),
    "a cut": (
        "arrays.npz",
        lambda b: b[:-5],
        r"npz: \d+ bytes, and trace.json says \d+: it is cut",
    ),
    "a comma": ("trace.json", lambda b: b.replace(b",", b"", 1), "trace.json: JSON is malformed"),
    "a type": ("trace.json", lambda b: b.replace(b'"step": ', b'"step": "x", "y": '), r"\$\.step"),
    "a field": ("trace.json", lambda b: b.replace(b'"pages"', b'"pges"'), "`pages`"),
    "a format": ("trace.json", lambda b: b.replace(b'"format": 1', b'"format": 9'), "format 9; th"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_trace_is_refused_with_its_place(
    kept: dict[str, bytes], damage: str, tmp_path: Path
) -> None:
    name, change, told = DAMAGES[damage]
    for file, content in kept.items():
        (tmp_path / file).write_bytes(change(content) if file == name else content)
    with pytest.raises(TraceError, match=told):
        read_trace(tmp_path)


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"trace\.json: No such file .* is .* the folder of a trace"
    ):
        read_trace(tmp_path)


def test_pages_of_another_form_are_refused(tmp_path: Path) -> None:
    engine = traced(*MODES["int8 pages"], TraceOrder(str(tmp_path), 2))
    submit_many(engine)
    run_to_end(engine)
    with pytest.raises(TraceError, match=r"keep attention and quant\.kv as they were"):
        again(tmp_path, plain=True)
