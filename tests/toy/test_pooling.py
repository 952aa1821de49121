"""Vectors of prompts are those of a plain forward pass, whatever the engine does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from camshaft.errors import RequestError
from camshaft.request import TokenSpan
from camshaft.step import FORMAT, Step, int32
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.text import byte_tokenizer
from camshaft.testing.toy import LLAMA, compose_toy
from tests.plugins.model.test_parity import reference_model
from tests.toy.test_prompt_logprobs import MODES, PROMPT, prompts
from tests.toy.test_transformers_parity import SHAPE, compose_folder

KINDS = ("mean", "last", "cls")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A saved model, and the states [T, C] behind its last norm for every prompt."""
    model = reference_model("Llama", **SHAPE)
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    with torch.inference_mode():
        states = [model.model(torch.tensor([one])).last_hidden_state[0] for one in prompts()]
    return folder, states


def expected(states: torch.Tensor, kind: str) -> list[float]:
    rows = {"mean": states.mean(0), "last": states[-1], "cls": states[0]}
    found: list[float] = rows[kind].tolist()
    return found


@pytest.mark.parametrize("mode", MODES)
def test_they_are_those_of_a_plain_forward(family: Any, mode: str) -> None:
    folder, states = family
    engine = compose_folder(folder, MODES[mode])
    for turn in range(2):  # the second finds its prompts in the cache
        for kind in KINDS:
            for number, prompt in enumerate(prompts()):
                name = f"{turn}-{kind}-{number}"
                engine.submit(make_request(name, prompt, 1, pooling=kind))
                engine.submit(make_request(f"{name}-stream", prompt[::-1], 8, ignore_eos=True))
        results = run_to_end(engine)
        for kind in KINDS:
            for number, one in enumerate(states):
                found = results[f"{turn}-{kind}-{number}"]
                assert (found.token_ids, found.finish) in (([], "length"), ([], "stop"))
                assert found.embedding == pytest.approx(expected(one, kind), abs=1e-4)
                assert len(results[f"{turn}-{kind}-{number}-stream"].token_ids) == 8
                assert results[f"{turn}-{kind}-{number}-stream"].embedding == []
        assert engine.stats.output_tokens == (turn + 1) * 8 * len(KINDS) * len(states)
    if mode == "preempted":
        assert sum(engine.stats.preemptions.values()) > 0
    engine.close()


def test_only_the_last_state_is_made_with_cached_pages() -> None:
    engine = compose_toy().engine
    for turn in range(2):
        for kind in KINDS:
            engine.submit(make_request(f"{turn}{kind}", PROMPT, 1, pooling=kind, salt=kind))
        results = run_to_end(engine)
        cached = {kind: results[f"{turn}{kind}"].cached_tokens for kind in KINDS}
        assert cached == {"mean": 0, "last": 32 * turn, "cls": 0}
    engine.close()


def test_chunks_and_company_change_no_bit() -> None:
    whole, chunked = (
        compose_toy(changes={"scheduler": {"step_tokens": tokens}}).engine for tokens in (64, 7)
    )
    for engine in (whole, chunked):
        for kind in KINDS:
            engine.submit(make_request(kind, PROMPT, 1, pooling=kind))
    for number in range(4):
        chunked.submit(make_request(f"{number}", PROMPT[number:], 8, ignore_eos=True))
    alone, together = run_to_end(whole), run_to_end(chunked)
    for kind in KINDS:
        assert alone[kind].embedding == together[kind].embedding
    whole.close()
    chunked.close()


def test_a_prompt_as_long_as_the_context_has_a_vector_and_no_room_for_a_token() -> None:
    engine = compose_toy({**LLAMA, "max_position_embeddings": 32}).engine
    engine.submit(make_request("full", range(32), 1, pooling="mean"))
    with pytest.raises(RequestError, match="32 tokens, one of them generated"):
        engine.submit(make_request("answer", range(32), 1))
    with pytest.raises(RequestError, match="at most 32 tokens"):
        engine.submit(make_request("long", range(33), 1, pooling="mean"))
    assert len(run_to_end(engine)["full"].embedding) == LLAMA["hidden_size"]
    engine.close()


def test_what_makes_no_vector_is_refused() -> None:
    engine = compose_toy().engine
    for fields in ({"max_tokens": 2}, {"max_tokens": 1, "prompt_logprobs": 1}):
        with pytest.raises(RequestError, match="max_tokens 1 and no prompt_logprobs"):
            engine.submit(make_request("a", [1, 2], pooling="cls", **fields))
    request = make_request("b", [1], 1, pooling="mean")
    request.spans = (TokenSpan([1, 2, 3, 4], position=0), TokenSpan([5]))
    with pytest.raises(RequestError, match="modules are computed apart"):
        engine.submit(request)
    engine.close()


def test_a_vector_that_is_not_finite_is_an_error() -> None:
    engine = compose_toy().engine
    weight = engine.parts.executor.parts.model._norm  # type: ignore[attr-defined]
    weight[3] = float("inf")
    engine.submit(make_request("a", PROMPT, 1, pooling="last"))
    found = run_to_end(engine)["a"]
    assert (found.finish, found.embedding, found.token_ids) == ("error", [], [])
    engine.close()


def test_a_step_carries_the_pooling_of_its_requests() -> None:
    step = Step(slots=int32([0, 1]), pooling=int32([0, 3]))
    assert FORMAT == 5
    assert Step.unpack(step.pack()).pooling.tolist() == [0, 3]


def test_the_null_executor_gives_vectors_too() -> None:
    engine = compose_toy(changes={"engine": {"executor": "null", "deterministic": False}}).engine
    engine.submit(make_request("a", PROMPT, 1, pooling="mean"))
    engine.submit(make_request("b", PROMPT, 2))
    results = run_to_end(engine)
    assert (results["a"].embedding, results["b"].token_ids) == ([1.0], [0, 0])
    engine.close()
