from __future__ import annotations

import re

import pytest

from camshaft import RecipeError


def test_a_value_is_yaml(load) -> None:
    recipe = load("", "cache.page_tokens=8", "cache.prefix=false", "server.host='8'")
    assert (recipe.cache.page_tokens, recipe.cache.prefix) == (8, False)
    assert recipe.server.host == "8"


def test_the_last_one_wins(load) -> None:
    assert load("", "engine.depth=2", "engine.depth=3").engine.depth == 3


@pytest.mark.parametrize("override", ["scheduler.use=slo", "scheduler=slo"])
def test_another_component_drops_the_old_ones_fields_and_keeps_the_sections(load, override) -> None:
    scheduler = load("", override).scheduler
    assert (scheduler.use.name, scheduler.step_tokens) == ("slo", 512)


def test_a_field_of_the_new_component_may_come_before_its_name(load) -> None:
    scheduler = load("", "scheduler.victim=oldest", "scheduler.use=slo").scheduler
    assert scheduler.use.settings.victim == "oldest"


def test_a_mapping_replaces_the_whole(load) -> None:
    assert load("", "scheduler={use: slo}").scheduler.step_tokens == 2048


def test_a_bare_name_takes_fields(load) -> None:
    assert load("attention: triton", "attention.use=sdpa", "attention.split=2")
    assert load("scheduler: slo", "scheduler.victim=x").scheduler.use.settings.victim == "x"


def test_one_phase_of_attention_can_be_set(load) -> None:
    attention = load("", "attention.decode.use=triton").attention
    assert (attention.prefill.settings.split, attention.decode.name) == (4, "triton")


def test_lists_can_be_indexed_appended_to_and_cut(load) -> None:
    text = "sampling: {processors: [bias, {use: bias}]}"
    names = [
        [chosen.name for chosen in load(text, override).sampling.processors]
        for override in (
            "sampling.processors.1.use=penalty",
            "sampling.processors.0=penalty",
            "sampling.processors+=penalty",
            "~sampling.processors.0",
        )
    ]
    assert names == [
        ["bias", "penalty"],
        ["penalty", "bias"],
        ["bias", "bias", "penalty"],
        ["bias"],
    ]


def test_appending_makes_a_list_where_there_was_none(load) -> None:
    assert [chosen.name for chosen in load("", "observers+=printer").observers] == ["printer"]


def test_deleting_restores_the_default(load) -> None:
    assert load("", "~scheduler.chunk_tokens").scheduler.use.settings.chunk_tokens == 256


@pytest.mark.parametrize(
    ("override", "fault"),
    [
        ("cache", "--set cache: write a.b=VALUE, a.0.b=VALUE, a+=VALUE or ~a.b (to delete)."),
        ("~cache=1", "--set ~cache=1: write a.b=VALUE"),
        ("cache..x=1", "--set cache..x=1: write a.b=VALUE"),
        ("cache.x=[1", "--set cache.x: this is not YAML"),
        ("~cache.size", "--set ~cache.size: cache.size is not in the recipe."),
        ("~server.port", "--set ~server.port: server is not in the recipe."),
        ("cache.page_tokens.x=1", "cache.page_tokens holds a plain value, nothing below it."),
        ("cache.page_tokens+=1", "cache.page_tokens is not a list, so nothing can be appended."),
        ("observers.0=printer", "observers must be a list of observer components"),
        (
            "sampling.processors.2=bias",
            "sampling.processors has 2 entries, counted from 0, and no '2'",
        ),
        (
            "cache.page_token=1",
            "--set cache.page_token: cache.page_token is not a setting of 'paged'",
        ),
        ("server.port=x", "--set server.port: server.port should be a valid integer"),
    ],
)
def test_an_override_that_reaches_nothing_is_refused(load, override: str, fault: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(fault)):
        load("sampling: {processors: [bias, bias]}", override)


def test_all_bad_overrides_are_reported(load) -> None:
    with pytest.raises(RecipeError) as error:
        load("", "cache", "~cache.size")
    assert len(error.value.faults) == 2
