"""Prompts made of modules: the engine computes what transformers does with positions and a mask."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft import RequestError
from camshaft.loop.engine import Engine
from camshaft.request import Request, RequestOutput, TokenSpan
from camshaft.testing.engines import collect, make_request, run_to_end
from camshaft.testing.text import byte_tokenizer
from camshaft.testing.toy import LLAMA, compose_toy, pool, toy_mapping
from tests.plugins.model.test_parity import reference_model

SHAPE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}
NEW, NEAR_TIE = 10, 1e-4


def words(seed: int, count: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(256) for _ in range(count)]


# a schema: 0 ... 16 | 16 ... 48 | 48 ... 64 | 64 ... 96, and a gap
MODULES = [
    TokenSpan(words(number, length), position)
    for number, (position, length) in enumerate([(0, 16), (16, 32), (48, 16), (64, 32), (200, 16)])
]
CHOSEN = [(0, 2), (1,), (2, 3), (0, 1, 2, 3, 4), (4,), (1, 4), (0,)]


def request(name: str, chosen: Sequence[int], own: list[int], **fields: Any) -> Request:
    made = make_request(name, own, fields.pop("max_tokens", NEW), ignore_eos=True, **fields)
    made.spans = (*(MODULES[one] for one in chosen), *made.spans)
    return made


def requests() -> list[Request]:
    return [
        request(f"r{number}", chosen, words(100 + number, 1 + 5 * number))
        for number, chosen in enumerate(CHOSEN)
    ]


@torch.inference_mode()
def greedy(model: Any, asked: Request) -> list[int]:
    """What follows, with attention of modules to themselves only; up to the first near-tie."""
    prompt, found = asked.prompt_ids, list[int]()
    positions, starts = list[int](), list[int]()
    for span in asked.modules:
        assert span.position is not None
        starts += [len(positions)] * len(span.ids)
        positions += range(span.position, span.position + len(span.ids))
    for _ in range(asked.params.max_tokens):
        ids = prompt + found
        more = len(ids) - len(positions)
        positions += range(positions[-1] + 1, positions[-1] + 1 + more)
        starts += [0] * more
        place = torch.arange(len(ids))
        seen = (place <= place[:, None]) & (place >= torch.tensor(starts)[:, None])
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        logits = model(
            torch.tensor([ids]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([positions]),
        ).logits
        best = logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < NEAR_TIE:
            break
        found.append(int(best.indices[0]))
    return found


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A model in a folder, and what transformers says to each request."""
    model = reference_model("Llama", **SHAPE)
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    return folder, [greedy(model, one) for one in requests()]


def modular(changes: dict[str, Any]) -> dict[str, Any]:
    """Add the cache that composes modules, and debugging aids."""
    cache, engine = changes.get("cache", {}), changes.get("engine", {})
    return {
        **changes,
        "cache": {"use": "modular", **cache},
        "engine": {"poison": True, **engine},
    }


def composed(folder: Path, changes: dict[str, Any]) -> Engine:
    from camshaft.compose import compose
    from camshaft.recipe import parse_recipe
    from camshaft.registry import Registry

    mapping = toy_mapping(changes=modular(changes))
    mapping["model"] = {"source": str(folder), "dtype": "float32"}
    return compose(parse_recipe(mapping, Registry.discover())).engine


def check(results: dict[str, RequestOutput], wanted: list[list[int]]) -> None:
    assert sum(len(one) for one in wanted) > 40, "near-ties would hide differences"
    assert sorted(results) == [f"r{number}" for number in range(len(wanted))]
    for number, ids in enumerate(wanted):
        result = results[f"r{number}"]
        assert (result.finish, len(result.token_ids)) == ("length", NEW)
        assert result.token_ids[: len(ids)] == ids, number


MODES: dict[str, dict[str, Any]] = {
    "pages of 4": {},
    "pages of 16": {"cache": {"page_tokens": 16}},
    "over radix": {"cache": {"over": {"use": "radix"}}},
    "over radix, pages of 1": {"cache": {"over": {"use": "radix"}, "page_tokens": 1}},
    "over token_table": {"cache": {"over": {"use": "token_table"}, "page_tokens": 1}},
    "over tiered": {"cache": {"over": {"use": "tiered", "threads": 0}}},
    "sdpa": {"attention": {"use": "sdpa"}, "engine": {"deterministic": False}},
    "chunked": {"scheduler": {"step_tokens": 9}},
    "in closed batches": {"scheduler": {"use": "static", "batch_size": 3}},
    "by slack": {"scheduler": {"use": "slo", "predictor": "fitted"}},
    "late": {"engine": {"depth": 2, "executor": {"use": "late", "late_steps": 2}}},
    "few pages": {"cache": {"memory": pool(38, SHAPE)}},
    "few pages over radix": {"cache": {"memory": pool(38, SHAPE), "over": {"use": "radix"}}},
    "few pages over token_table": {
        "cache": {
            "memory": pool(152, SHAPE, 1),
            "page_tokens": 1,
            "over": {"use": "token_table", "expected_share": 0.0},
        },
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_answers_are_those_of_transformers(saved: tuple[Path, list[list[int]]], mode: str) -> None:
    folder, wanted = saved
    engine = composed(folder, MODES[mode])
    for turn in range(2):
        for one in requests():
            engine.submit(one)
        results = run_to_end(engine)
        check(results, wanted)
        if "few" not in mode:
            assert (results["r1"].cached_tokens >= 32) == bool(turn)
    usage = engine.usage()[0]
    assert usage.in_use == usage.pinned == 0
    if "few" in mode:
        assert engine.stats.evictions["space"] > 0
        assert engine.stats.preemptions["no_space"] > 0


def toy(**changes: dict[str, Any]) -> Engine:
    return compose_toy(LLAMA, modular(changes)).engine


def refusal(engine: Engine, *spans: TokenSpan) -> str:
    made = make_request("a", [1])
    made.spans = spans
    with pytest.raises(RequestError) as caught:
        engine.submit(made)
    assert caught.value.param == "prompt"
    assert not engine.states
    return str(caught.value)


def test_modules_that_cannot_be_composed_are_refused() -> None:
    engine, own = toy(), TokenSpan([1, 2])
    four = TokenSpan(words(1, 4), 8)
    assert "module 1 of the prompt comes behind other text" in refusal(engine, own, four)
    assert "has 3 tokens, which do not fill pages of 4" in refusal(
        engine, TokenSpan([1] * 3, 0), own
    )
    assert "has 0 tokens" in refusal(engine, four, TokenSpan([], 50), own)
    assert "module 2 of the prompt is at position 11, before the end" in refusal(
        engine, four, TokenSpan(words(2, 4), 11), own
    )
    assert "is at position -4, before" in refusal(engine, TokenSpan(words(1, 4), -4), own)
    assert "behind its modules the prompt is empty" in refusal(engine, four)
    assert "ends at position 514; this model has 512" in refusal(
        engine, TokenSpan([1] * 4, 508), own
    )


@pytest.mark.parametrize(
    ("model", "cache", "says"),
    [
        (LLAMA, {}, "this cache does not compose modules; 'modular' over it does"),
        (LLAMA, {"use": "radix"}, "this cache does not compose modules"),
    ],
)
def test_engines_that_cannot_compose_modules_say_why(model: Any, cache: Any, says: str) -> None:
    engine = compose_toy(model, {"cache": cache}).engine
    assert says in refusal(engine, TokenSpan(words(1, 4), 8), TokenSpan([1]))
    engine.submit(request("plain", (0,), [1]))
    assert run_to_end(engine)["plain"].finish == "length"


def test_an_answer_ends_at_the_last_position() -> None:
    engine = toy()
    made = make_request("a", [5, 6], 100, ignore_eos=True)
    made.spans = (TokenSpan(words(1, 4), 500), *made.spans)
    engine.submit(made)
    assert len(run_to_end(engine)["a"].token_ids) == 512 - 506


def cached(engine: Engine, made: Request) -> int:
    engine.submit(made)
    return run_to_end(engine)[made.id].cached_tokens


def test_modules_of_one_salt_are_not_served_to_another() -> None:
    engine = toy()
    found = [cached(engine, request("a", (1,), [1, 2], salt=salt)) for salt in ("x", "y", "x")]
    assert found == [0, 0, 32]


def test_a_module_elsewhere_or_behind_a_text_is_another() -> None:
    engine = toy()
    assert cached(engine, request("a", (1,), [1])) == 0
    ids = MODULES[1].ids
    assert cached(engine, make_request("b", [*ids, 1])) == 0
    moved = make_request("c", [1])
    moved.spans = (TokenSpan(ids, 52), *moved.spans)
    assert cached(engine, moved) == 0
    assert cached(engine, request("d", (0, 1), [1])) == 32
    assert cached(engine, make_request("e", [*MODULES[0].ids, *ids, 1])) == 16


def test_what_follows_modules_is_found_again_only_behind_the_same_ones() -> None:
    engine = toy()
    first = cached(engine, request("a", (1, 2), words(9, 8)))
    same = cached(engine, request("b", (1, 2), [*words(9, 8), 1]))
    other = cached(engine, request("c", (1, 3), [*words(9, 8), 1]))
    fewer = cached(engine, request("d", (2,), [*words(9, 8), 1]))
    assert (first, same, other, fewer) == (0, 56, 32, 16)


@pytest.mark.parametrize(("unit_tokens", "read"), [(4, 28 + 28), (16, 16 + 16), (32, 0)])
def test_modules_that_only_a_tier_has_are_read_but_for_their_last_unit(
    unit_tokens: int, read: int
) -> None:
    memory = {"use": "memory", "capacity": "1MiB"}
    tiers = {"use": "tiered", "tiers": [memory], "threads": 0, "load": "always"}
    engine = toy(cache={"over": {**tiers, "unit_tokens": unit_tokens}})
    engine.submit(request("a", (1, 3), [1]))
    cold = run_to_end(engine)["a"].token_ids
    computed = engine.stats.step_tokens
    engine.reset_cache(tiers=False)
    engine.submit(request("b", (1, 3), [1]))
    assert run_to_end(engine)["b"].token_ids == cold
    assert engine.cache_counters()["hit_tokens_memory"] == read
    assert engine.stats.step_tokens - computed == computed - read


def test_a_module_is_computed_once_for_all_that_wait_for_it() -> None:
    engine = toy(scheduler={"step_tokens": 8})
    for number in range(4):
        engine.submit(request(f"r{number}", (1, 3), [number], max_tokens=1))
    results = run_to_end(engine)
    assert engine.stats.step_tokens == 64 + 4
    assert [results[f"r{number}"].cached_tokens for number in range(4)] == [0, 64, 64, 64]
    assert (engine.stats.prompt_tokens, engine.stats.cached_tokens) == (4 * 65, 3 * 64)
    assert sum(engine.stats.finished.values()) == 4


def test_a_module_that_fails_fails_those_who_need_it_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = toy()
    launch = engine.parts.executor.launch

    def failing(step: Any) -> None:
        if step.tokens[0] == MODULES[1].ids[0]:
            raise OSError("the device is gone")
        launch(step)

    monkeypatch.setattr(engine.parts.executor, "launch", failing)
    for name, chosen in (("a", (1,)), ("b", (1, 2)), ("c", (2,))):
        engine.submit(request(name, chosen, [1]))
    results = run_to_end(engine)
    assert results["a"].message == results["b"].message
    assert "a module of the prompt: the step could not be launched" in results["a"].message
    monkeypatch.setattr(engine.parts.executor, "launch", launch)
    assert cached(engine, request("d", (1,), [1])) == 0


def test_a_request_that_leaves_while_its_modules_are_computed_is_gone() -> None:
    engine = toy(scheduler={"step_tokens": 8})
    engine.submit(request("a", (1,), [1]))
    results: dict[str, RequestOutput] = {}
    for _ in range(2):
        collect(engine.step(), results)
    engine.abort("a")
    for _ in range(20):
        collect(engine.step(), results)
    assert list(results) == ["a"]
    assert not engine.has_work
    assert cached(engine, request("b", (1,), [1])) == 32


def test_modules_that_never_stay_end_their_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = toy(cache={"memory": pool(64)})
    before = engine.parts.scheduler.plan

    def plan(view: Any) -> Any:
        engine.reset_cache()
        return before(view)

    monkeypatch.setattr(engine.parts.scheduler, "plan", plan)
    engine.submit(request("a", (1,), [1]))
    result = run_to_end(engine)["a"]
    assert (result.finish, result.token_ids) == ("error", [])
    assert "left the cache 64 times before they were used" in result.message
