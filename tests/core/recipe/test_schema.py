from __future__ import annotations

import pytest
from jsonschema import Draft202012Validator

from camshaft import recipe_schema

PARTS = {"model": "m", "hardware": "cpu", "attention": "sdpa", "cache": "paged", "scheduler": "slo"}


@pytest.fixture
def validator(registry) -> Draft202012Validator:
    schema = recipe_schema(registry)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"cache": {"use": "paged", "sharing": "strict", "page_tokens": 8, "memory": "2GiB"}},
        {
            "cache": {
                "use": "tiered",
                "over": {"use": "tiered", "over": "paged"},
                "eviction": "slru",
            }
        },
        {"attention": {"prefill": {"use": "sdpa", "split": 2}, "decode": "triton"}},
        {"model": {"config": {"model_type": "llama"}, "use": "auto"}},
        {"model": {"source": "x", "use": "decoder"}},
        {"sampling": {"processors": ["bias", {"use": "penalty"}]}, "observers": ["printer"]},
        {"scheduler": {"use": "slo", "weights": {"ttft": 2}}},
        {"engine": {"executor": {"use": "late", "late_steps": 1}}},
    ],
)
def test_it_accepts_what_loads(validator, change: dict[str, object]) -> None:
    assert list(validator.iter_errors(PARTS | change)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"cache": {"use": "paged", "sharing": "some"}},
        {"cache": {"use": "tiered", "over": "nobody"}},
        {"cache": {"use": "paged", "page_token": 8}},
        {"attention": {"prefill": "sdpa", "encode": "sdpa"}},
        {"sampling": {"processors": ["nobody"]}},
        {"scheduler": {"use": "slo", "weights": {"ttf": 2}}},
        {"sheduler": "slo"},
    ],
)
def test_it_refuses_what_does_not(validator, change: dict[str, object]) -> None:
    assert list(validator.iter_errors(PARTS | change)) != []


def test_it_explains_fields_in_the_words_of_the_settings(registry) -> None:
    forms = recipe_schema(registry)["properties"]["cache"]["anyOf"]
    assert forms[0]["properties"]["page_tokens"]["description"] == "Tokens in a page."
