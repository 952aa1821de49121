"""Open-loop load: arrivals, streams, summaries, the curve, and a toy behind a real server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import load, online, results
from benchmarks.curve import draw
from benchmarks.load import Answer, Order, Point, Spread, drive, poisson


def event(*ids: int) -> bytes:
    return b"data: " + json.dumps({"choices": [{"token_ids": ids}]}).encode() + b"\n\n"


def test_arrivals_are_those_of_the_seed_at_the_rate_that_was_asked_for() -> None:
    orders = poisson(50.0, 1000, 16, 8, vocab=320, seed=1)
    assert orders == poisson(50.0, 1000, 16, 8, vocab=320, seed=1)
    assert orders[0].due_s == 0
    assert 18 < orders[-1].due_s < 22
    assert {len(one.prompt) for one in orders} == set(range(12, 21))
    assert {one.outputs for one in orders} == {6, 7, 8, 9, 10}
    assert max(max(one.prompt) for one in orders) == 319


def test_tokens_are_counted_by_piece_and_a_piece_may_hold_several_events() -> None:
    answer = Answer(Order(0.0, (1,), 4), 200)
    answer.pieces = [(0.1, event(5)), (0.2, event(6) + event(7, 8)), (0.3, b"data: [DONE]\n\n")]
    assert answer.tokens() == [(0.1, 1), (0.2, 3)]
    assert answer.is_whole


def test_an_error_in_the_stream_is_no_token() -> None:
    failure = b'data: {"error": {"code": "engine_dead"}}\n\n'
    answer = Answer(Order(0.0, (1,), 1), 200, [(0.1, failure)])
    assert answer.tokens() == []
    assert not answer.is_whole


def test_a_point_counts_from_when_a_request_was_due_and_leaves_failures_out() -> None:
    first = Answer(Order(1.0, (1,), 3), 200, [(1.5, event(1)), (1.7, event(2)), (1.8, event(3))])
    second = Answer(Order(2.0, (1,), 2), 200, [(2.3, event(1)), (2.5, event(2))])
    refused = Answer(Order(0.5, (1,), 2), 429)
    point = Point.of(4.0, [first, second, refused])
    assert (point.requests, point.failed) == (3, 1)
    assert point.ttft.p50 == pytest.approx(400)
    assert point.itl.p50 == pytest.approx(200)
    assert point.out_tok_s == pytest.approx(5 / 1.5)


def test_a_rate_at_which_nothing_is_whole_is_an_error() -> None:
    with pytest.raises(ValueError, match="no request of 1 got its tokens at 4 a second"):
        Point.of(4.0, [Answer(Order(0.0, (1,), 2), 503)])


def answered_by(serve: Callable[..., Awaitable[None]], orders: list[Order]) -> list[Answer]:
    async def run() -> list[Answer]:
        server = await asyncio.start_server(serve, load.HOST, 0)
        async with server:
            return await drive(server.sockets[0].getsockname()[1], orders)

    return asyncio.run(run())


async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.partition(b"Content-Length: ")[2].split(b"\r\n")[0])
    outputs = json.loads(await reader.readexactly(size))["max_tokens"]
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for number in range(outputs):
        writer.write(b"%x\r\n%b\r\n" % (len(event(number)), event(number)))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    writer.close()


async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 429 Too Many Requests\r\nconnection: close\r\n\r\n")
    writer.close()


def test_streams_are_read_chunk_by_chunk() -> None:
    answers = answered_by(chunked, [Order(0.0, (1, 2), 3), Order(0.1, (3,), 2)])
    assert [one.is_whole for one in answers] == [True, True]
    assert answers[1].pieces[0][0] >= 0.1


def test_refusals_and_servers_that_hang_up_are_failures_and_not_exceptions() -> None:
    [refused] = answered_by(refusing, [Order(0.0, (1,), 3)])
    assert (refused.status, refused.is_whole) == (429, False)

    async def hanging_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    [dropped] = answered_by(hanging_up, [Order(0.0, (1,), 3)])
    assert (dropped.status, dropped.is_whole) == (0, False)


def test_the_curve_is_a_picture_with_both_latencies_at_every_rate() -> None:
    points = [
        Point(rate, 10, 0, Spread(20 * rate, 50 * rate), Spread(5, 9 * rate), 100.0)
        for rate in (1.0, 4.0, 16.0)
    ]
    picture = ElementTree.fromstring(draw(points, "a <model>"))
    space = "{http://www.w3.org/2000/svg}"
    lines = picture.findall(f"{space}polyline")
    assert [len((one.get("points") or "").split()) for one in lines] == [3, 3, 3, 3]
    labels = [one.text for one in picture.findall(f"{space}text")]
    assert {"a <model>", "1", "4", "16", "requests a second"} <= set(labels)
    # 50 ms at one request a second is higher up, so has a smaller y, than 20 ms
    y = [float((one.get("points") or "").split()[0].split(",")[1]) for one in lines]
    assert y[1] < y[0]


@pytest.mark.slow
def test_a_toy_behind_a_server_is_measured_at_two_rates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    words = "--rates 10 20 --seconds 0.5 --prompt 24 --output 8 --warm 4"
    recipe = Path(__file__).parents[2] / "recipes" / "toy.yaml"
    argv = ["online", "--recipe", str(recipe), *words.split(), "--draw", str(tmp_path / "a.svg")]
    monkeypatch.setattr(sys, "argv", argv)
    assert online.main() == 0
    lines = [json.loads(one) for one in (tmp_path / "online.jsonl").read_text().splitlines()]
    assert {one["workload"] for one in lines} == {"24-in-8-out@10", "24-in-8-out@20"}
    values = {one["metric"]: one["value"] for one in lines}
    assert values["failed"] == 0
    assert 0 < values["ttft_ms_p50"] <= values["ttft_ms_p99"]
    assert values["out_tok_s"] > 0
    assert {one["model"] for one in lines} == {"toy"}
    assert (tmp_path / "a.svg").read_text().startswith("<svg")
