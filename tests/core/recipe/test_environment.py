from __future__ import annotations

import re

import pytest

from camshaft import RecipeError


def test_a_variable_is_filled_in(load) -> None:
    recipe = load("model: ${ROOT}/tiny.gguf\nserver: {host: '${HOST}'}", ROOT="/data", HOST="::1")
    assert recipe.model.source == "/data/tiny.gguf"
    assert recipe.server.host == "::1"


def test_a_number_may_come_from_a_variable(load) -> None:
    assert load("server:\n  port: ${PORT}", PORT="81").server.port == 81
    assert load("server: {port: '${PORT}'}", PORT="81").server.port == 81


def test_quotes_keep_text_text(load) -> None:
    text = "scheduler:\n  use: slo\n  victim: '${WHO}'"
    assert load(text, WHO="7").scheduler.use.settings.victim == "7"


def test_a_default_is_used_when_the_variable_is_not_set(load) -> None:
    assert load("server:\n  port: ${PORT:-82}").server.port == 82
    assert load("server:\n  port: ${PORT:-82}", PORT="83").server.port == 83


def test_a_doubled_dollar_is_literal(load) -> None:
    text = "scheduler: {use: slo, victim: '$${WHO}'}"
    assert load(text).scheduler.use.settings.victim == "${WHO}"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("${NOPE}", "recipe.yaml:3: ${NOPE} is not set in the environment; set it, or write"),
        ("${NOPE", "recipe.yaml:3: '${NOPE' has a `${` that is no ${NAME} or ${NAME:-text}."),
    ],
)
def test_what_cannot_be_filled_in_is_a_fault(load, value: str, fault: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(fault)):
        load(f"server:\n  host: '{value}'")


def test_an_undefined_variable_that_is_overridden_does_no_harm(load) -> None:
    assert load("server: {host: '${NOPE}'}", "server.host=here").server.host == "here"


def test_the_name_of_the_extended_recipe_may_hold_one(load) -> None:
    assert load("extends: ${WHICH}.yaml", alone=True, WHICH="base").cache.page_tokens == 32
