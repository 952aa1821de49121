"""`engine bench` on a toy whose executor computes nothing, and once on one that does."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from camshaft.cli import main

TOY = str(Path(__file__).parents[3] / "recipes" / "toy.yaml")
ROOM = (
    "--set", "model.config.max_position_embeddings=4096", "--set", "cache.memory=1MiB",
)  # fmt: skip
HOST = ("--set", "engine.executor=null", "--set", "engine.debug=false")


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["bench", TOY, "--warmup", "0", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_is_one_object_with_the_documented_fields(capsys) -> None:
    report = bench(capsys, "--workload", "cpu-batch8", *HOST)
    assert {key: type(value) for key, value in report.items()} == {
        "seconds": float,
        "requests": int,
        "n_in": int,
        "n_out": int,
        "out_tok_s": float,
        "in_tok_s": float,
        "ttft_ms": dict,
        "tpot_ms": dict,
        "cache": dict,
        "workload": str,
        "seed": int,
        "repeats": list,
        "recipe": str,
        "model": str,
        "device": str,
        "engine": str,
    }
    assert (report["requests"], report["n_in"], report["n_out"]) == (8, 1024, 1024)
    assert set(report["ttft_ms"]) == set(report["tpot_ms"]) == {"p50", "p99"}
    assert (report["recipe"], report["model"], report["workload"]) == (TOY, "toy", "cpu-batch8")
    assert report["engine"].startswith("camshaft 0.")


def test_hits_evictions_fragmentation_and_bytes_of_the_cache_are_told(capsys) -> None:
    report = bench(capsys, "--workload", "shared", *HOST, *ROOM)
    cache = report["cache"]
    assert set(cache) == {
        "hit_tokens", "hit_rate", "evicted_pages", "preemptions", "unused_tokens", "pools",
    }  # fmt: skip
    # 8 begin together; all others find the 2,048 tokens in common
    assert 2048 * 200 < cache["hit_tokens"] < 2048 * 256
    assert cache["hit_rate"] == round(cache["hit_tokens"] / report["n_in"], 4)
    assert 0 < cache["unused_tokens"] < 8 * 64
    assert cache["evicted_pages"]["space"] > 100
    (pool,) = cache["pools"]
    assert pool["bytes"] == 1023 * 1024
    assert 512 * 1024 < pool["most_bytes_in_use"] <= pool["bytes"]


def test_what_tiers_did_and_hold_is_told_too(capsys) -> None:
    tiers = ("--set", "cache.use=tiered", "--set", "cache.threads=0", "--set", "cache.load=always")
    quick = ("--set", "engine.debug=false")  # the executor that computes nothing moves no pages
    cache = bench(capsys, "--workload", "cpu-batch8", *quick, *ROOM, *tiers)["cache"]
    assert {
        "hit_tokens_device", "hit_tokens_memory", "memory_bytes_held", "exported_pages",
        "loaded_pages", "prefetched_pages", "prefetch_hit_pages", "prefetch_wasted_pages",
    } <= set(cache)  # fmt: skip
    assert cache["exported_pages"] > 0
    assert cache["memory_bytes_held"] > 0


def test_of_several_runs_the_one_in_the_middle_is_reported(capsys) -> None:
    report = bench(capsys, "--workload", "cpu-single", "--repeats", "3", *HOST)
    assert len(report["repeats"]) == 3
    assert report["out_tok_s"] == statistics.median(report["repeats"])


def test_a_model_that_computes_is_measured_the_same_way(capsys) -> None:
    report = bench(capsys, "--workload", "cpu-single", "--set", "engine.debug=false")
    assert report["n_out"] == 128
    assert 0 < report["tpot_ms"]["p50"] <= report["tpot_ms"]["p99"]


def test_people_get_a_line_for_each_figure(capsys) -> None:
    assert main(["bench", TOY, "--workload", "cpu-single", "--warmup", "0", *HOST]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (lines["requests"], lines["n_out"], lines["workload"]) == ("1", "128", "cpu-single")


def test_progress_is_told_beside_the_result(capsys) -> None:
    assert main(["bench", TOY, "--workload", "cpu-single", "--repeats", "2", *HOST]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines()[-3:] == ["warm-up 1 of 1", "run 1 of 2", "run 2 of 2"]
    assert "run 1" not in said.out


def test_an_unknown_workload_is_told_before_anything_is_loaded(capsys) -> None:
    assert main(["bench", "no-such-recipe.yaml", "--workload", "cpu-singel"]) == 1
    assert capsys.readouterr().err.startswith(
        "no workload is called 'cpu-singel'; did you mean 'cpu-single'? known: cpu-single, "
    )


def test_a_workload_that_the_recipe_cannot_hold_is_a_fault_of_the_user(capsys) -> None:
    assert main(["bench", TOY, "--workload", "cpu-prompt512", "--warmup", "0", *HOST]) == 1
    said = capsys.readouterr().err
    assert "the prompt has 512 tokens, and this engine holds sequences of at most 512" in said
    assert "Traceback" not in said
