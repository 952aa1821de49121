"""`engine completion`: what bash, the shell that is everywhere, offers with it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from camshaft import Registry
from camshaft.cli.main import BUILT_IN as OWN
from camshaft.cli.main import _load
from camshaft.component import Settings
from camshaft.contracts.command import Command
from camshaft.plugins.lab.completion import BUILT_IN, Completion, options, overrides
from camshaft.testing.command import CommandContract


class TestContract(CommandContract):
    name = "completion"
    words = ("bash",)

    def make(self) -> Command:
        return Completion(Settings())

    def test_all_shells_get_a_script(self) -> None:
        scripts = {shell: self.run([shell])[1] for shell in ("bash", "zsh", "fish")}
        assert scripts["zsh"].endswith(scripts["bash"])
        assert (
            "complete -c engine -n '__fish_seen_subcommand_from run' -l prompt\n" in scripts["fish"]
        )


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.discover()


def test_the_engine_s_own_commands_are_known_with_their_options(registry: Registry) -> None:
    assert set(BUILT_IN) == set(OWN)
    for name, known in BUILT_IN.items():
        parser = argparse.ArgumentParser(add_help=False)
        _load(name, registry).add_arguments(parser)
        words = {word for one in parser._actions for word in one.option_strings}
        assert words == set(known)


def test_commands_of_plugins_are_there_and_broken_ones_are_left_out(registry: Registry) -> None:
    assert {"serve", "run", "bench", "completion"} <= set(options(registry))
    assert "--port" in options(registry)["serve"]


def test_keys_are_those_of_sections_components_and_lists(registry: Registry) -> None:
    keys = set(overrides(registry))
    assert {"cache.memory=", "server.port=", "attention.prefill=", "ops+=", "cache.use="} <= keys
    assert "hardware.threads=" in keys  # a setting of component `cpu`


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["engine", "sche"], "schema"),
        (["engine", "serve", "--po"], "--port"),
        (["engine", "check", "r.yaml", "--set", "cache.page_t"], "cache.page_tokens="),
        (["engine", "check", "reci"], ""),
    ],
)
def test_bash_completes_with_it(tmp_path: Path, words: list[str], offered: str) -> None:
    script = tmp_path / "engine"
    script.write_text(TestContract().run(["bash"])[1])
    line = (
        f"source {script}; COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _engine; "
        "echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == offered
