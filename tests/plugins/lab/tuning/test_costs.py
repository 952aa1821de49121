"""Costs are looked up between measured points, and put together to steps."""

from __future__ import annotations

import pytest

from camshaft.plugins.lab.tuning.costs import Host, Link, Mix
from tests.plugins.lab.tuning.costs import costs, curve


def test_between_points_times_are_linear_and_beyond_them_those_of_the_nearest() -> None:
    line = curve("qkv", 1, {10: 2.0, 20: 4.0, 40: 5.0})
    assert [line.at(size).seconds for size in (1, 10, 15, 30, 99)] == [2.0, 2.0, 3.0, 4.5, 5.0]
    assert line.at(15).busy == (0.0, 3.0, 0.0)
    assert line.at(15).name == "qkv"


def test_a_point_that_took_longer_than_a_larger_one_was_disturbed() -> None:
    line = curve("qkv", 1, {10: 9.0, 20: 4.0, 40: 5.0})
    assert [line.at(size).seconds for size in (10, 20, 40)] == [4.0, 4.0, 5.0]


def test_a_layer_attends_for_those_that_it_holds() -> None:
    names = [one.name for one in costs().layer(Mix(4, 2))]
    assert names == ["qkv", "decode", "prefill", "out", "gate_up", "down"]
    assert "prefill" not in {one.name for one in costs().layer(Mix(4, 0))}
    assert "decode" not in {one.name for one in costs().layer(Mix(0, 2))}


def test_devices_sum_up_behind_attention_and_behind_the_layer() -> None:
    link = Link(ranks=4, bytes_s=100.0, wait_s=0.5, token_bytes=10)
    layer = costs(link=link).layer(Mix(1, 1))
    assert [one.name for one in layer if one.bound == 2] == ["all-reduce", "all-reduce"]
    # 101 tokens of 10 bytes, of which each device sends three quarters twice
    assert layer[-1].seconds == pytest.approx(0.5 + 1.5 * 1010 / 100)
    assert layer[-1].name == "all-reduce"


def test_parts_go_through_the_layers_alone_and_meet_at_the_head() -> None:
    tasks = costs(layers=2).tasks([Mix(10, 0), Mix(0, 1)])
    assert len(tasks) == 2 * 5 + 2 * 5 + 1
    assert tasks[0].after == tasks[10].after == ()
    assert tasks[-1].after == (9, 19)
    assert tasks[-1].operation.name == "ends"


def test_a_step_takes_what_the_device_or_the_host_takes() -> None:
    host = Host(decode_s=50.0, mixed_s=3000.0)
    mixed, decoding = [Mix(0, 1)], [Mix(1, 0)]
    assert costs(layers=1).seconds(mixed) == pytest.approx(100 + 1 + 1)
    assert costs(layers=1, host=host).seconds(mixed) == 3000.0
    assert costs(layers=1, host=host).seconds([*decoding, *mixed]) == 3050.0
    assert costs(layers=1, host=host).seconds(decoding) == pytest.approx(1 + 100 + 1)
