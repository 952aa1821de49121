"""One line for each answer and event, as JSON or in words, and no text of anybody's in it."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from camshaft.plugins.serving.logs import JsonLines, TextLines, tell
from camshaft.testing.toy import toy_mapping

SECRET = "echo the-secret-of-the-prompt"


class Lines(logging.Handler):
    """Keeps what is logged, in one form."""

    def __init__(self, form: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(form)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))

    @property
    def requests(self) -> list[Any]:
        found = [json.loads(line) for line in self.lines]
        return [one for one in found if one["event"] == "request"]


@pytest.fixture
def logged() -> Iterator[Lines]:
    log, lines = logging.getLogger("camshaft.server"), Lines(JsonLines())
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(lines)
    log.setLevel(logging.NOTSET)


def test_an_answer_that_came_to_its_end_is_one_line_of_ids_counts_and_times(
    serve_toy, logged: Lines
) -> None:
    server = serve_toy({})
    asked = {"max_tokens": 3, "ignore_eos": True, "user": "t\n1", "request_id": "a", "n": 2}
    server.complete("Hello, world", **asked)
    [line] = logged.requests
    assert {name: line[name] for name in ("id", "tenant", "status", "code", "finish", "level")} == {
        "id": "cmpl-a", "tenant": "t\n1", "status": 200, "code": None,
        "finish": ["length", "length"], "level": "info",
    }  # fmt: skip
    counts = [line[f"{name}_tokens"] for name in ("prompt", "cached", "output")]
    assert counts == [12, 0, 6]
    assert 0 <= line["queued_ms"] <= line["first_ms"] <= line["total_ms"] < 20_000
    assert line["time"].endswith("Z")


def test_streams_stops_and_beams_are_told_alike(serve_toy, logged: Lines) -> None:
    server = serve_toy({})
    body = {"max_tokens": 4, "ignore_eos": True}
    assert server.complete("abc", stream=True, **body).text.endswith("[DONE]\n\n")
    server.complete("abc", use_beam_search=True, n=2, **body)
    server.chat("abc", **body)
    assert [one["finish"] for one in logged.requests] == [["length"], ["length"] * 2, ["length"]]
    assert [one["output_tokens"] for one in logged.requests] == [4, 8, 4]
    assert all(one["queued_ms"] is not None for one in logged.requests)
    assert len({line.count("\n") for line in logged.lines}) == 1


def test_what_failed_was_cancelled_or_left_has_its_status(serve, logged: Lines, until) -> None:
    server = serve(step_s=0.01)
    server.complete("BOOM")
    request = server.http.build_request(
        "POST", "/v1/completions", json={"prompt": SECRET * 3, "max_tokens": 90, "stream": True}
    )
    response = server.http.send(request, stream=True)
    next(response.iter_raw())
    response.close()
    until(lambda: len(logged.requests) == 2)
    assert [(one["status"], one["code"]) for one in logged.requests] == [
        (500, "engine_error"),
        (499, None),
    ]
    assert logged.requests[1]["finish"] == [None]
    assert not any("secret" in line for line in logged.lines)


def record(name: str, text: str, args: Any = None, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.INFO, "", 0, text, args, None)
    vars(made).update(extra)
    return made


def test_a_person_reads_seconds_a_level_and_a_sentence() -> None:
    form = TextLines()
    made = form.format(record("camshaft.server", "stopping", event="drain", fields={"n": 1}))
    assert made == "[   0.0 s] info: stopping"
    access = record("uvicorn.access", '%s "%s %s" %d', ("1.2.3.4:5", "GET", "/a?b=c", "1.1", 200))
    assert form.format(access) == "[   0.0 s] info: GET /a: 200"
    assert json.loads(JsonLines().format(access))["path"] == "/a"


def test_a_fault_carries_its_traceback_in_one_line_of_json() -> None:
    made = record("other", "it broke")
    try:
        int("no")
    except ValueError:
        made.exc_info = sys.exc_info()
    line = JsonLines().format(made)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["event"], told["logger"], told["text"]) == ("message", "other", "it broke")
    assert "ValueError: invalid literal" in told["traceback"]


def test_nothing_is_written_below_the_level_that_is_asked_for(logged: Lines) -> None:
    logging.getLogger("camshaft.server").setLevel(logging.WARNING)
    tell("request", "an answer", id="a")
    tell("drain", "stopping", logging.WARNING)
    assert [json.loads(one)["event"] for one in logged.lines] == ["drain"]


@pytest.mark.slow
def test_every_line_of_a_served_toy_is_json(tmp_path: Path) -> None:
    recipe = tmp_path / "toy.yaml"
    recipe.write_text(json.dumps(toy_mapping()))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "camshaft", "serve", str(recipe), "--log-format", "json"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        told = []
        for line in process.stdout:
            told.append(json.loads(line))
            if told[-1]["event"] == "ready":
                break
        body = {"prompt": SECRET, "max_tokens": 2, "ignore_eos": True}
        httpx.post(f"{told[-1]['url']}/v1/completions", json=body, timeout=20)
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=30)[0]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert "secret" not in rest
    told += [json.loads(line) for line in rest.splitlines()]
    events = [one["event"] for one in told]
    assert events[0] == "start"
    assert events[events.index("ready") :] == ["ready", "request", "http", "drain", "stop"]
    ended = told[events.index("request")]
    assert (ended["prompt_tokens"], ended["output_tokens"], ended["finish"]) == (29, 2, ["length"])
    assert told[events.index("http")]["path"] == "/v1/completions"
