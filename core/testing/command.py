"""The contract of commands, as tests to inherit."""

from __future__ import annotations

import argparse
import io
import itertools
import re
import shlex
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, ClassVar

import pytest

from ..errors import CamshaftError
from ..registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..contracts.command import Command


class CommandContract:
    """Subclass it, define `make`, say how the command is called, and run pytest.

    Attributes:
        name: The word on the command line.
        words: Arguments of a call that works, is quick and ends by itself; None for a command that
            runs until it is stopped, whose runs its own tests must cover.
        faulty: Arguments of calls that the parser takes and the command must turn down, such as a
            recipe that does not exist.
    """

    name: ClassVar[str]
    words: ClassVar[Sequence[str] | None] = ()
    faulty: ClassVar[Sequence[Sequence[str]]] = ()

    def make(self) -> Command:
        """Return the command under test, with default settings."""
        raise NotImplementedError

    def registry(self) -> Registry:
        """Return the plugins that it runs with."""
        return Registry.discover()

    def parser(self, command: Command) -> argparse.ArgumentParser:
        """Return the parser that `engine` would make for it."""
        parser = argparse.ArgumentParser(
            f"engine {self.name}",
            description=command.description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(parser)
        return parser

    def run(self, words: Sequence[str]) -> tuple[int, str]:
        """Run it; return the exit code and what it printed to standard output."""
        command = self.make()
        args = self.parser(command).parse_args(list(words))
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(io.StringIO()):
            code = command.run(args, self.registry())
        assert type(code) is int, f"run returned {code!r}"
        return code, said.getvalue()

    def test_the_help_says_what_it_does_and_shows_how(self) -> None:
        """Some words about it, and an indented line to copy that begins with `engine NAME`."""
        said = self._help()
        assert self.make().description.strip()
        assert self.make().description.strip() in said
        assert self.examples(), f"no line of the description begins with `  engine {self.name}`"

    def test_every_argument_explains_itself(self) -> None:
        """In `--help`, in words."""
        parser = self.parser(self.make())
        silent = [one.dest for one in parser._actions if not (one.help or "").strip()]
        assert silent == []

    def test_the_examples_are_calls_that_the_parser_takes(self) -> None:
        """A help text that was copied and does not work is worse than none."""
        for example in self.examples():
            said = io.StringIO()
            try:
                with redirect_stderr(said):
                    self.parser(self.make()).parse_args(words_of(example)[2:])
            except SystemExit:
                pytest.fail(f"{example!r}: {said.getvalue().strip()}")

    def test_an_unknown_option_is_wrong_usage(self) -> None:
        """Not swallowed: the parser ends the call with 2."""
        parser = self.parser(self.make())
        with redirect_stderr(io.StringIO()), pytest.raises(SystemExit) as ended:
            parser.parse_args([*(self.words or ()), "--no-such-option-anywhere"])
        assert ended.value.code == 2

    def test_it_runs_and_says_how_it_went(self) -> None:
        """With the integer 0."""
        code, _ = self.run(self._words())
        assert code == 0

    def test_it_runs_twice_in_a_process(self) -> None:
        """In a notebook or in a test it is not alone with the interpreter."""
        codes = [self.run(self._words())[0] for _ in range(2)]
        assert codes == [0, 0]

    def test_a_fault_of_the_user_is_no_crash(self) -> None:
        """It is a `CamshaftError`, shown without a traceback, or an exit code of 1."""
        for words in self.faulty:
            try:
                code, _ = self.run(words)
            except CamshaftError as error:
                assert str(error)  # noqa: PT017 - either way is right
            else:
                assert code == 1, f"{words} gave {code}"

    def examples(self) -> list[str]:
        """Return the lines of the description that show a call, joined where they are broken."""
        lines = self.make().description.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if re.match(rf"\s+engine {self.name}(\s|$)", line)]

    def _words(self) -> Sequence[str]:
        if self.words is None:
            pytest.skip("it runs until it is stopped")
        return self.words

    def _help(self) -> str:
        with redirect_stdout(said := io.StringIO()), pytest.raises(SystemExit) as ended:
            self.parser(self.make()).parse_args(["--help"])
        assert ended.value.code == 0
        return said.getvalue()


def words_of(line: str) -> list[str]:
    """Return the words of a line of shell, up to a pipe, a redirection or a remark."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(itertools.takewhile(lambda word: word[0] not in "|&;<>()", lexer))
