"""Vectors of an encoder are those of transformers, whatever the engine does."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.compose import Composed, compose, draw
from camshaft.errors import CamshaftError, RecipeError, RequestError
from camshaft.plugins.model.encoder import EncoderFamily
from camshaft.recipe import parse_recipe
from camshaft.registry import Registry
from camshaft.request import POOLINGS, RequestOutput
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.text import byte_tokenizer
from camshaft.testing.toy import toy_mapping

SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 320,
    "max_position_embeddings": 64,
}
MODES: dict[str, dict[str, Any]] = {
    "whole": {"scheduler": {"chunk_tokens": "off"}},
    "planned in chunks": {},  # which the engine does not take
    "static": {"scheduler": {"use": "static"}},
    "late": {"engine": {"depth": 2, "executor": {"use": "late", "late_steps": 2}}},
    "sdpa": {"attention": {"use": "sdpa"}, "engine": {"deterministic": False}},
    "few pages": {"cache": {"memory": "56KiB"}},
}
KINDS = POOLINGS[1:]


def texts() -> list[list[int]]:
    chance = random.Random(3)
    return [[chance.randrange(256) for _ in range(n)] for n in (1, 64, 7, 30, 2, 41, 64)]


def reference(kind: str = "BertModel", **fields: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(**SHAPE, **fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, kind)(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    byte_tokenizer().save(folder / "tokenizer.json")
    return folder


def composed(folder: Path, changes: dict[str, Any]) -> Composed:
    mapping = toy_mapping(changes={"cache": {}, **changes})
    mapping["cache"]["prefix"] = False
    mapping["model"] = {"source": str(folder), "dtype": "float32"}
    return compose(parse_recipe(mapping, Registry.discover()))


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A saved model, and the states [T, C] behind its last layer for every text."""
    model = reference()
    with torch.inference_mode():
        states = [model(torch.tensor([one])).last_hidden_state[0] for one in texts()]
    return saved(model, tmp_path_factory.mktemp("bert")), states


def check(results: dict[str, RequestOutput], states: list[torch.Tensor]) -> None:
    for number, one in enumerate(states):
        rows = {"mean": one.mean(0), "last": one[-1], "cls": one[0]}
        for kind in KINDS:
            found = results[f"{kind}{number}"].embedding
            assert found == pytest.approx(rows[kind].tolist(), abs=1e-4), (kind, number)


@pytest.mark.parametrize("mode", MODES)
def test_they_are_those_of_transformers(family: Any, mode: str) -> None:
    folder, states = family
    engine = composed(folder, MODES[mode]).engine
    for number, text in enumerate(texts()):
        for kind in KINDS:
            engine.submit(make_request(f"{kind}{number}", text, 1, pooling=kind))
    results = run_to_end(engine)
    check(results, states)
    assert {one.cached_tokens for one in results.values()} == {0}
    engine.close()


@pytest.mark.parametrize("fields", [{"hidden_act": "relu"}, {"hidden_act": "gelu_new"}], ids=str)
def test_a_part_of_a_larger_model_is_read_too(
    fields: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = reference("BertForMaskedLM", **fields)
    with torch.inference_mode():
        states = [model.bert(torch.tensor([one])).last_hidden_state[0] for one in texts()]
    with caplog.at_level(logging.WARNING):
        engine = composed(saved(model, tmp_path), {}).engine
    assert caplog.messages == []
    for number, text in enumerate(texts()):
        for kind in KINDS:
            engine.submit(make_request(f"{kind}{number}", text, 1, pooling=kind))
    check(run_to_end(engine), states)
    engine.close()


def test_company_changes_no_bit(family: Any) -> None:
    folder, _ = family
    engine = composed(folder, {}).engine
    together = [make_request(f"a{at}", one, 1, pooling="mean") for at, one in enumerate(texts())]
    for request in together:
        engine.submit(request)
    among = run_to_end(engine)
    for number, text in enumerate(texts()):
        engine.submit(make_request("alone", text, 1, pooling="mean"))
        assert run_to_end(engine)["alone"].embedding == among[f"a{number}"].embedding
    engine.close()


def test_a_text_fits_a_step_and_is_never_cut(family: Any) -> None:
    folder, _ = family
    short = composed(folder, {"scheduler": {"step_tokens": 20}})
    assert (short.info.room, short.info.generates) == (20, False)
    short.engine.submit(make_request("fits", [1] * 20, 1, pooling="mean"))
    with pytest.raises(RequestError, match="at most 20 tokens"):
        short.engine.submit(make_request("long", [1] * 21, 1, pooling="mean"))
    with pytest.raises(RequestError, match="generates none"):
        short.engine.submit(make_request("answer", [1], 1))
    assert run_to_end(short.engine)["fits"].finish == "length"
    assert short.engine.stats.steps == 1
    short.engine.close()


def test_a_scheduler_that_always_cuts_is_told(family: Any) -> None:
    folder, _ = family
    engine = composed(folder, {"scheduler": {"chunk_tokens": 8}}).engine
    engine.submit(make_request("a", [1] * 9, 1, pooling="mean"))
    found = run_to_end(engine)["a"]
    assert (found.finish, "chunk_tokens: off" in found.message) == ("error", True)
    engine.close()


def test_a_recipe_that_would_cache_or_warm_up_is_refused(family: Any) -> None:
    folder, _ = family
    mapping = toy_mapping(changes={"engine": {"warm_up": "graphs"}})
    mapping["model"] = {"source": str(folder), "dtype": "float32"}
    with pytest.raises(RecipeError) as error:
        draw(parse_recipe(mapping, Registry.discover()))
    assert "say `prefix: false`" in str(error.value)
    assert "engine.warm_up: it runs steps that choose tokens" in str(error.value)


def test_attention_that_looks_back_only_is_refused(family: Any) -> None:
    folder, _ = family
    with pytest.raises(CamshaftError, match="'flex' cannot serve layers 0 to 2: it is causal only"):
        composed(folder, {"attention": {"use": "flex"}, "engine": {"deterministic": False}})


def test_weights_may_be_drawn() -> None:
    config = {"model_type": "bert", **SHAPE}
    changes: dict[str, Any] = {"model": {"config": config}, "cache": {"prefix": False}}
    engine = compose(parse_recipe(toy_mapping(changes=changes), Registry.discover())).engine
    for name, text in (("a", [1, 2, 3]), ("b", [3, 2, 1])):
        engine.submit(make_request(name, text, 1, pooling="mean"))
    found = run_to_end(engine)
    difference = torch.tensor(found["a"].embedding) - torch.tensor(found["b"].embedding)
    assert difference.abs().max() > 1e-3, "the order of tokens counts"
    engine.close()


def test_what_it_cannot_be_is_said_in_words(tmp_path: Path) -> None:
    config = draw_config({"hidden_act": "cube_root"})
    assert EncoderFamily.supports(config) == [
        "activation 'cube_root' is not implemented; gelu, gelu_new, gelu_pytorch_tanh, relu are"
    ]


def draw_config(changes: dict[str, Any]) -> Any:
    from camshaft.checkpoint import random_checkpoint

    return random_checkpoint({"model_type": "bert", **SHAPE, **changes}).config
