from __future__ import annotations

import re

import pytest

from camshaft import RecipeError


def test_a_variant_changes_what_it_names_and_keeps_the_rest(load) -> None:
    recipe = load("scheduler: {chunk_tokens: 64}")
    assert recipe.scheduler.use.settings.chunk_tokens == 64
    assert recipe.scheduler.step_tokens == 512


@pytest.mark.parametrize("text", ["scheduler: slo", "scheduler: {use: slo}"])
def test_another_component_drops_the_old_ones_fields_and_keeps_the_sections(load, text) -> None:
    recipe = load(text)
    assert recipe.scheduler.use.name == "slo"
    assert recipe.scheduler.step_tokens == 512


def test_the_same_component_keeps_its_fields(load) -> None:
    assert load("scheduler: chunked").scheduler.use.settings.chunk_tokens == 128


def test_a_nested_component_follows_the_same_rule(load, write) -> None:
    write(
        "tiered.yaml",
        "extends: base.yaml\ncache: {use: tiered, over: {use: paged, sharing: strict}}",
    )
    text = "extends: tiered.yaml\ncache: {over: {use: tiered, over: paged}}"
    over = load(text, alone=True).cache.use.settings.over
    assert (over.name, over.settings.over.name) == ("tiered", "paged")


def test_one_phase_over_both_splits_them(load) -> None:
    attention = load("attention: {decode: triton}").attention
    assert (attention.prefill.name, attention.prefill.settings.split) == ("sdpa", 4)
    assert attention.decode.name == "triton"


def test_both_over_two_phases_replaces_them(load, write) -> None:
    write("split.yaml", "extends: base.yaml\nattention: {prefill: sdpa, decode: triton}")
    attention = load("extends: split.yaml\nattention: triton", alone=True).attention
    assert (attention.prefill.name, attention.decode.name) == ("triton", "triton")


def test_lists_are_replaced(load, write) -> None:
    write("two.yaml", "extends: base.yaml\nsampling: {processors: [bias, penalty]}")
    recipe = load("extends: two.yaml\nsampling: {processors: [penalty]}", alone=True)
    assert [chosen.name for chosen in recipe.sampling.processors] == ["penalty"]


def test_plugin_files_add_up(load, write) -> None:
    write(
        "a.py", "from camshaft import hookimpl\n@hookimpl\ndef camshaft_components(): return []\n"
    )
    write(
        "sub/b.py",
        "from camshaft import hookimpl\n@hookimpl\ndef camshaft_components(): return []\n",
    )
    write("sub/first.yaml", "extends: ../base.yaml\nplugins: [b.py]")
    recipe = load("extends: sub/first.yaml\nplugins: [a.py]", alone=True)
    assert [path.name for path in recipe.plugins] == ["b.py", "a.py"]


def test_a_fault_in_an_extended_file_is_placed_there(load, write, tmp_path) -> None:
    write("bad.yaml", "extends: base.yaml\n\nserver: {prot: 1}")
    with pytest.raises(RecipeError, match=re.escape(f"{tmp_path}/bad.yaml:3: server.prot is not")):
        load("extends: bad.yaml", alone=True)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("extends: recipe.yaml", "recipe.yaml:1: extends goes in a circle: recipe.yaml -> recipe"),
        (
            "extends: round.yaml",
            "round.yaml:1: extends goes in a circle: recipe.yaml -> round.yaml",
        ),
        ("extends: none.yaml", "recipe.yaml:1: extends names 'none.yaml', but /"),
        ("extends: [a, b]", "extends takes the path of one recipe"),
    ],
)
def test_a_chain_that_does_not_end_well_is_refused(load, write, text: str, fault: str) -> None:
    write("round.yaml", "extends: recipe.yaml")
    with pytest.raises(RecipeError, match=re.escape(fault)):
        load(text, alone=True)
