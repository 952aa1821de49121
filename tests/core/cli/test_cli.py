from __future__ import annotations

import json
from pathlib import Path

import pytest

from camshaft.cli import main

TOYS = Path(__file__).parents[1] / "recipe" / "toys.py"
WORKING = Path(__file__).with_name("toy.yaml")
RECIPE = f"""\
model: m.gguf
hardware: cpu
attention: sdpa
cache: paged
scheduler: slo
plugins: [{TOYS}]
"""
GREET = """
from camshaft import Component, hookimpl
from camshaft.contracts.command import Command

class Greet(Command):
    description = "Greets somebody, as in: engine greet Ada"
    def __init__(self, settings): pass
    def add_arguments(self, parser): parser.add_argument("who")
    def run(self, args, registry):
        print("hello", args.who)
        return 0

@hookimpl
def camshaft_components():
    return [Component("command", "greet", f"{__name__}:Greet", summary="greet somebody")]
"""


@pytest.fixture(autouse=True)
def without_our_own_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys may share names with the engine's own components."""
    monkeypatch.setenv("CAMSHAFT_DISABLE", "camshaft")


def test_help_names_the_commands_and_the_exit_codes(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert "exit codes: 0 success, 1 a fault you can fix, 2 wrong usage, 3 a fault of the" in said
    for command in ("plugins", "check", "schema"):
        assert f"    {command} " in said


def test_no_command_prints_the_help(capsys) -> None:
    assert main([]) == 0
    assert "usage: engine" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plugins", "check", "schema"])
def test_each_command_explains_itself_with_an_example(capsys, command: str) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert f"\n  engine {command} " in capsys.readouterr().out


def test_an_unknown_command_is_wrong_usage(capsys) -> None:
    assert main(["chek"]) == 2
    said = capsys.readouterr().err
    assert "no command is called 'chek'; did you mean 'check'? Commands: plugins, check" in said


def test_an_unknown_option_is_wrong_usage(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["plugins", "--jsn"])


def test_plugins_lists_what_is_installed_as_json(site, capsys) -> None:
    site.offer("acme-fast", "fast", version="3.1")
    assert main(["plugins", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    (row,) = [row for row in rows if row["distribution"] == "acme-fast"]
    settings = row.pop("settings")
    assert row == {
        "kind": "scheduler",
        "name": "fast",
        "distribution": "acme-fast",
        "version": "3.1",
        "api_version": 0,
        "summary": "A scheduler for tests.",
        "status": "ok",
    }
    assert settings["type"] == "object"


def test_plugins_lists_broken_and_disabled_ones_too(site, capsys) -> None:
    site.install("acme-broken", "raise ImportError('no such kernel')")
    assert main(["plugins", "--json"]) == 0
    rows = {row["distribution"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["acme-broken"]["status"] == "broken"
    assert "no such kernel" in rows["acme-broken"]["traceback"]
    assert rows["camshaft"]["status"] == "disabled"


def test_plugins_prints_a_table_for_people(site, capsys) -> None:
    site.offer("acme-fast", "fast")
    site.install("acme-broken", "raise ImportError('no such kernel')")
    assert main(["plugins", "--kind", "scheduler"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["kind", "name", "distribution", "version", "status", "summary"]
    assert lines[1].split()[:5] == ["scheduler", "fast", "acme-fast", "1.2", "ok"]
    assert "acme-broken 1.2 cannot be used: it raised ImportError: no such kernel." in lines[-1]


def test_check_prints_every_fault_on_stderr_and_fails(write, capsys) -> None:
    path = write("r.yaml", RECIPE + "server: {prot: 1}\n")
    assert main(["check", str(path), "--set", "scheduler.use=sloo"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no scheduler is called 'sloo'; did you mean 'slo'?" in err
    assert (
        f"{path}:7: server.prot is not a setting of section 'server'; did you mean 'port'?" in err
    )
    assert "Traceback" not in err


def test_check_says_so_when_all_is_well(monkeypatch, capsys) -> None:
    monkeypatch.delenv("CAMSHAFT_DISABLE")
    assert main(["check", str(WORKING)]) == 0
    assert capsys.readouterr() == (f"{WORKING}: OK, 9 components\n", "")


def test_check_can_show_each_value_with_its_origin(monkeypatch, capsys) -> None:
    monkeypatch.delenv("CAMSHAFT_DISABLE")
    assert main(["check", str(WORKING), "--show", "--set", "engine.depth=2"]) == 0
    said = capsys.readouterr().out
    assert "engine.depth = 2  (--set engine.depth)\n" in said
    assert f"cache.use = 'paged'  ({WORKING}:" in said
    assert "cache.eviction.use = 'lru'  (default)\n" in said


@pytest.mark.parametrize(("form", "size", "fit"), [("none", 256, 8176), ("int4", 64, 32752)])
def test_check_shows_how_many_tokens_fit(monkeypatch, capsys, form, size, fit) -> None:
    monkeypatch.delenv("CAMSHAFT_DISABLE")
    words = ["--set", f"quant.kv={form}", "--set", "cache.memory=2MiB"]
    assert main(["check", str(WORKING), "--show", *words]) == 0
    said = capsys.readouterr().out
    assert f"keys and values: {size} bytes a token, cache.memory holds {fit} tokens\n" in said


def test_check_finds_parts_that_do_not_fit_each_other_or_the_machine(monkeypatch, capsys) -> None:
    monkeypatch.delenv("CAMSHAFT_DISABLE")
    words = ["--set", "attention.use=sdpa", "--set", "model.dtype=float16"]
    words += ["--set", "model.max_context=9999"]
    assert main(["check", str(WORKING), "--set", "engine.deterministic=true", *words]) == 1
    said = capsys.readouterr().err
    assert "attention: 'sdpa' cannot serve layers 0 to 1: its results depend on the batch" in said
    assert "model.dtype: cpu does not compute in float16" in said
    assert "model.max_context: 9999 is more than the 512 that the model was made for" in said


def test_check_loads_the_implementations(write, capsys) -> None:
    path = write("r.yaml", RECIPE.replace("slo", "absent"))
    assert main(["check", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"{path}:5: scheduler: scheduler 'absent' of {TOYS} did not load" in said
    assert "No module named 'a_module_that_nobody_has'" in said


def test_schema_is_json(capsys) -> None:
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "A camshaft recipe"


def test_a_plugin_can_add_a_command(site, capsys) -> None:
    site.install("acme-greet", GREET)
    assert main(["greet", "Ada"]) == 0
    assert capsys.readouterr().out == "hello Ada\n"
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "greet     greet somebody" in capsys.readouterr().out


def test_a_plugin_cannot_take_a_command_of_ours(site, capsys, caplog) -> None:
    site.install("acme-greet", GREET.replace('"greet"', '"plugins"'))
    assert main(["plugins", "--json"]) == 0
    assert "command 'plugins' of acme-greet 1.2 is not offered" in caplog.text


def test_a_fault_of_ours_shows_its_traceback_and_has_its_own_code(site, capsys) -> None:
    site.install("acme-greet", GREET.replace("return 0", "return 1 / 0"))
    assert main(["greet", "Ada"]) == 3
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "this is a fault of the engine or of a plugin, not yours" in said


@pytest.mark.parametrize(
    "code",
    ["import a_module_that_nobody_has", "import sys; sys.exit(4)", "raise RuntimeError('x')"],
)
def test_PLG_01_a_named_broken_plugin_stops_the_command_with_its_traceback(
    site, write, code: str
) -> None:
    site.install("acme-broken", code, entry="fast")
    path = write("r.yaml", RECIPE.replace("slo", "fast"))
    done = site.engine("check", str(path), CAMSHAFT_DISABLE="camshaft")
    assert done.returncode == 1
    assert "plugin 'fast' of acme-broken 1.2 cannot be used" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr
    assert code.split(";")[-1].strip() in done.stderr


def test_PLG_01_a_broken_plugin_that_is_not_named_is_one_warning(site) -> None:
    site.install("acme-broken", "import sys; sys.exit(4)")
    done = site.engine("check", str(WORKING))
    assert done.returncode == 0
    assert done.stderr == (
        "engine: plugin 'main' of acme-broken 1.2 cannot be used: it raised SystemExit: 4. "
        "Repair it, or `pip uninstall acme-broken`.\n"
    )


def test_PLG_02_help_and_the_list_work_whatever_is_installed(site) -> None:
    site.install("acme-broken", "from camshaft.cli import something_removed")
    assert site.engine("--help").returncode == 0
    assert "acme-broken" in site.engine("plugins").stdout


def test_plain_leaves_out_what_makes_a_recipe_fast_and_set_still_counts(
    capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAMSHAFT_DISABLE")
    words = ["check", str(WORKING), "--show", "--plain", "--set", "engine.depth=2"]
    assert main([*words, "--set", "cache.page_tokens=8"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "attention.decode.use = 'reference'  (--set attention)" in said
    assert "cache.prefix = False  (--set cache.prefix)" in said
    assert "engine.depth = 2  (--set engine.depth)" in said
    assert "cache.page_tokens = 8  (--set cache.page_tokens)" in said
