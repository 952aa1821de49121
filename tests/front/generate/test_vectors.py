"""Vectors of texts: what pools them where nobody says it, and their length."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from camshaft.errors import RequestError
from camshaft.generate import pooled, unit
from camshaft.request import Pooling, SamplingParams
from camshaft.testing.scripted import Traits
from camshaft.testing.text import byte_text

INFO = Traits().info
ENCODER = msgspec.structs.replace(INFO, generates=False)


@pytest.mark.parametrize(
    ("wanted", "stated", "generates", "found"),
    [
        (None, None, True, "last"),
        (None, None, False, "mean"),
        (None, "cls", False, "cls"),
        ("last", "cls", False, "last"),
    ],
)
def test_a_request_goes_before_the_files_and_these_before_the_kind_of_model(
    wanted: Pooling | None, stated: str | None, generates: bool, found: Pooling
) -> None:
    text = replace(byte_text(), pooling=stated)
    params = pooled(wanted, text, INFO if generates else ENCODER)
    assert params == SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, pooling=found)


def test_a_pooling_that_there_is_not_is_refused_unless_another_is_asked_for() -> None:
    text = replace(byte_text(), pooling="max_tokens")
    with pytest.raises(RequestError, match="made for 'max_tokens'.*mean, last, cls"):
        pooled(None, text, ENCODER)
    assert pooled("mean", text, ENCODER).pooling == "mean"


def test_a_unit_vector_has_length_one_and_nothing_stays_nothing() -> None:
    assert unit([3.0, 0.0, -4.0]).tolist() == pytest.approx([0.6, 0.0, -0.8])
    assert unit([1e-30, 0.0]).tolist() == [1.0, 0.0]
    assert unit([0.0, 0.0]).tolist() == [0.0, 0.0]
