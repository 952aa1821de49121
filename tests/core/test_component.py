from __future__ import annotations

import pytest

from camshaft import Component, PluginError

COMPLETE = """
from camshaft.contracts.eviction import EvictionPolicy

class Policy(EvictionPolicy):
    def __init__(self, settings): self.settings = settings
    def on_insert(self, entry): ...
    def on_touch(self, entry): ...
    def on_evict(self, entry): ...
    def key(self, entry): return 0
"""


def component(module: str) -> Component:
    return Component("eviction", "mine", f"{module}:Policy", distribution="acme", version="3")


def test_a_complete_implementation_loads(site) -> None:
    (site.folder / "complete.py").write_text(COMPLETE)
    assert component("complete").load().__name__ == "Policy"


def test_PLG_01_a_class_that_lacks_methods_is_refused_with_their_names(site) -> None:
    (site.folder / "partial.py").write_text("class Policy:\n    def key(self, entry): ...\n")
    expected = "'mine' of acme 3 .* lacks on_evict, on_insert, on_touch, which EvictionPolicy"
    with pytest.raises(PluginError, match=expected):
        component("partial").load()


def test_a_package_that_is_not_installed_is_named_without_a_traceback(site) -> None:
    (site.folder / "wanting.py").write_text("import no_such_package.part\n")
    wanted = "'mine' of acme 3 needs the Python package 'no_such_package', which is not installed"
    with pytest.raises(PluginError, match=wanted) as refused:
        component("wanting").load()
    assert "Traceback" not in str(refused.value)


@pytest.mark.parametrize("module", ["no_such_module", "faulty.part"])
def test_a_part_of_the_plugin_itself_that_is_missing_shows_its_traceback(site, module: str) -> None:
    (site.folder / "faulty.py").write_text("")
    with pytest.raises(PluginError, match="(?s)did not load.*Traceback"):
        component(module).load()


@pytest.mark.parametrize(
    ("code", "reason"),
    [("raise SystemExit(3)", "SystemExit: 3"), ("x = 1 / 0", "ZeroDivisionError"), ("", "Policy")],
)
def test_PLG_01_an_implementation_that_does_not_import_shows_its_traceback(
    site, code: str, reason: str
) -> None:
    (site.folder / "faulty.py").write_text(code)
    with pytest.raises(PluginError, match=f"(?s)'mine' of acme 3 did not load.*{reason}"):
        component("faulty").load()
