from __future__ import annotations

import re

import pytest

from camshaft import Component, PluginError, Registry
from camshaft.registry import disabled_in

BROKEN = {
    "raises_import_error": ("import a_module_that_nobody_has", "No module named"),
    "raises_in_the_hook": (
        """
        from camshaft import hookimpl
        @hookimpl
        def camshaft_components():
            raise RuntimeError("the licence server is down")
        """,
        "the licence server is down",
    ),
    "exits": ("import sys; sys.exit(4)", "SystemExit: 4"),
    "returns_none": (
        """
        from camshaft import hookimpl
        @hookimpl
        def camshaft_components():
            return None
        """,
        "returned None, not a list of Component",
    ),
    "lists_something_else": (
        """
        from camshaft import hookimpl
        @hookimpl
        def camshaft_components():
            return ["fast"]
        """,
        "listed 'fast', which is no Component",
    ),
    "has_no_hook": ("x = 1", "no function camshaft_components"),
    "misspells_the_hook": (
        """
        from camshaft import hookimpl
        @hookimpl
        def camshaft_component():
            return []
        """,
        "a hook that does not exist; hooks: camshaft_components",
    ),
    "misspells_an_argument": (
        """
        from camshaft import hookimpl
        @hookimpl
        def camshaft_components(config):
            return []
        """,
        "PluginValidationError",
    ),
}

ONE_COMPONENT = """
from camshaft import Component, hookimpl

@hookimpl
def camshaft_components():
    return [Component({arguments})]
"""


def offering(arguments: str) -> str:
    return ONE_COMPONENT.replace("{arguments}", arguments)


def test_a_component_is_recorded_with_its_distribution_and_version(site) -> None:
    site.offer("acme-fast", "fast", version="2.1.0")
    component = Registry.discover().get("scheduler", "fast")
    assert (component.distribution, component.version) == ("acme-fast", "2.1.0")
    assert component.api_version == 0


@pytest.mark.parametrize("name", BROKEN)
def test_PLG_01_a_broken_plugin_is_recorded_and_takes_nobody_down(site, name: str) -> None:
    code, reason = BROKEN[name]
    site.install("acme-broken", code)
    site.offer("acme-fast", "fast")
    registry = Registry.discover()
    assert [broken.source.distribution for broken in registry.broken] == ["acme-broken"]
    assert reason in registry.broken[0].report
    assert registry.get("scheduler", "fast").distribution == "acme-fast"


@pytest.mark.parametrize("name", ["raises_import_error", "raises_in_the_hook", "exits"])
def test_PLG_01_the_report_has_the_original_traceback(site, name: str) -> None:
    site.install("acme-broken", BROKEN[name][0])
    report = Registry.discover().broken[0].report
    assert "Traceback (most recent call last)" in report
    assert "acme_broken.py" in report
    assert "pip uninstall acme-broken" in report


def test_PLG_01_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    registry = Registry().with_components(
        [Component("scheduler", "chunked", "m:C"), Component("scheduler", "fcfs", "m:F")]
    )
    expected = "no scheduler is called 'chunky'; did you mean 'chunked'? known: chunked, fcfs."
    with pytest.raises(PluginError, match=re.escape(expected)):
        registry.get("scheduler", "chunky")


def test_PLG_01_an_unknown_name_shows_the_broken_plugins_that_may_have_offered_it(site) -> None:
    site.install("acme-broken", "import a_module_that_nobody_has", entry="fast")
    with pytest.raises(PluginError, match="(?s)called 'fast'.*acme-broken 1.2.*Traceback"):
        Registry.discover().get("scheduler", "fast")


@pytest.mark.parametrize("version", ["-1", "7", '"abc"', "None"])
def test_PLG_02_a_component_for_another_contract_is_refused_with_both_versions(
    site, version: str
) -> None:
    site.install("acme-old", offering(f"'scheduler', 'old', 'm:C', api_version={version}"))
    expected = f"version {version.replace(chr(34), chr(39))} of the scheduler contract"
    with pytest.raises(PluginError, match=f"{expected}, and this camshaft has version 0"):
        Registry.discover().get("scheduler", "old")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("'turbo', 'x', 'm:C'", "no kind is called 'turbo'; kinds: hardware, model"),
        ("'scheduler', 'two words', 'm:C'", "'two words' is no name that a recipe can use"),
        ("'scheduler', 'x', 'm:C', settings=dict", "not a subclass of camshaft.Settings"),
        ("'scheduler', 'x', 'm:C', settings=Opaque", "settings without a JSON schema"),
        ("'scheduler', 'x', 'm:C', needs=frozenset({'magic'})", "it needs magic, but capabilities"),
    ],
)
def test_a_description_that_makes_no_sense_is_broken(site, arguments: str, reason: str) -> None:
    opaque = """
from typing import Callable
from camshaft import Settings
class Opaque(Settings):
    call: Callable[[], int]
"""
    site.install("acme-odd", opaque + offering(arguments))
    (broken,) = Registry.discover().broken
    assert reason in broken.reason


def test_two_distributions_with_one_name_are_both_refused_and_named(site) -> None:
    site.offer("acme-fast", "fast", entry="a")
    site.offer("other-fast", "fast", entry="b")
    registry = Registry.discover()
    with pytest.raises(PluginError, match="'acme-fast:a' and 'other-fast:b' offer it"):
        registry.get("scheduler", "fast")
    assert "fast" not in [component.name for component in registry.components("scheduler")]


@pytest.mark.parametrize("word", ["acme-fast:main", "acme-fast"])
def test_a_disabled_plugin_is_not_imported(site, word: str) -> None:
    site.install("acme-fast", "raise RuntimeError('imported')")
    registry = Registry.discover(disabled=[word])
    assert registry.broken == ()
    assert [source.label for source in registry.disabled] == ["acme-fast:main"]


def test_a_name_from_a_disabled_plugin_says_so(site) -> None:
    site.offer("acme-fast", "fast")
    registry = Registry.discover(disabled=["acme-fast"])
    with pytest.raises(PluginError, match="CAMSHAFT_DISABLE keeps out: acme-fast:main"):
        registry.get("scheduler", "fast")


def test_disabling_what_is_not_installed_gives_a_warning() -> None:
    (warning,) = Registry.discover(disabled=["acme:nothing"]).warnings()
    assert warning.startswith("CAMSHAFT_DISABLE names 'acme:nothing', but plugins are: camshaft:")


def test_the_environment_lists_disabled_plugins_with_commas() -> None:
    assert disabled_in({"CAMSHAFT_DISABLE": "a:b, c ,"}) == {"a:b", "c"}
    assert disabled_in({}) == frozenset()


def test_a_file_is_a_plugin_and_its_path_the_distribution(write) -> None:
    path = write("mine.py", offering("'scheduler', 'mine', f'{__name__}:Mine'") + "class Mine: ...")
    component = Registry().with_files([path]).get("scheduler", "mine")
    assert (component.distribution, component.version) == (str(path), "")


def test_the_same_file_is_the_same_module_in_two_registries(write) -> None:
    path = write("mine.py", offering("'scheduler', 'mine', f'{__name__}:Mine'"))
    first, second = (Registry().with_files([path]) for _ in range(2))
    assert first.get("scheduler", "mine") == second.get("scheduler", "mine")


def test_a_changed_file_is_loaded_again(write) -> None:
    path = write("mine.py", offering("'scheduler', 'before', 'm:C'"))
    Registry().with_files([path])
    write("mine.py", offering("'scheduler', 'after', 'm:C'"))
    assert Registry().with_files([path]).components()[0].name == "after"


def test_a_broken_file_is_named_by_its_path(write) -> None:
    path = write("mine.py", "def")
    (broken,) = Registry().with_files([path]).broken
    assert broken.source.distribution == str(path)
    assert "SyntaxError" in broken.reason


def test_a_broken_description_in_python_raises() -> None:
    with pytest.raises(PluginError, match="no kind is called 'turbo'"):
        Registry().with_components([Component("turbo", "x", "m:C")])


def test_our_own_plugins_take_the_road_of_third_parties_and_none_is_broken() -> None:
    offers = Registry.discover().offers
    ours = {offer.source.entry for offer in offers if offer.source.distribution == "camshaft"}
    assert "scheduler" in ours
    assert "cache" in ours
    assert [offer.broken for offer in offers if offer.broken] == []
