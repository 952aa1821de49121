from __future__ import annotations

import sys

import pytest

from camshaft.contracts.command import Command
from camshaft.errors import CamshaftError
from camshaft.registry import Registry
from camshaft.testing.command import CommandContract, words_of
from camshaft.testing.rejects import failures


class Greet(Command):
    description = """\
Say hello.

  engine greet Ada | tee greeting.txt
  engine greet 'Ada (and | all)' --times 2   # politely
"""

    def add_arguments(self, parser):
        parser.add_argument("who", help="whom to greet")
        parser.add_argument("--times", type=int, default=1, help="how often")

    def run(self, args, registry):
        if args.who == "nobody":
            raise CamshaftError("nobody is there; greet somebody")
        sys.stdout.write(f"hello {args.who}\n" * args.times)
        return 0 if args.times else 1


def verdict(command: type[Command], **attributes) -> list[str]:
    class Contract(CommandContract):
        name = "greet"
        words = ("Ada",)
        faulty = (("nobody",), ("Ada", "--times", "0"))

        def make(self) -> Command:
            return command()

        def registry(self) -> Registry:
            return Registry()

    for name, value in attributes.items():
        setattr(Contract, name, value)
    return failures(Contract)


def test_a_good_command_passes() -> None:
    assert verdict(Greet) == []


class Forever(Greet):
    def run(self, args, registry):
        raise AssertionError("it would not come back")


def test_a_command_that_does_not_end_is_not_run() -> None:
    assert verdict(Forever, words=None, faulty=()) == []


def test_a_line_of_shell_ends_at_a_pipe_that_is_not_quoted() -> None:
    assert words_of("engine greet 'a | b' --set x.y=[1,2] | jq '.[]'") == [
        "engine",
        "greet",
        "a | b",
        "--set",
        "x.y=[1,2]",
    ]
    assert words_of("engine check r.yaml > out.txt") == ["engine", "check", "r.yaml"]
    assert words_of("engine check r.yaml  (a remark)") == ["engine", "check", "r.yaml"]


class WithoutExample(Greet):
    description = "Say hello, as in: engine greet Ada"


class WithoutDescription(Greet):
    description = ""


class OldExample(Greet):
    description = "Say hello.\n\n  engine greet Ada --count 2\n"


class SilentArgument(Greet):
    def add_arguments(self, parser):
        super().add_arguments(parser)
        parser.add_argument("--loud", action="store_true")


class TakesAnything(Greet):
    def add_arguments(self, parser):
        super().add_arguments(parser)
        parser.parse_args = lambda words=None: parser.parse_known_args(words)[0]


class ReturnsNothing(Greet):
    def run(self, args, registry):
        super().run(args, registry)


class ReturnsTruth(Greet):
    def run(self, args, registry):
        return super().run(args, registry) == 0


class Exits(Greet):
    def run(self, args, registry):
        sys.exit(super().run(args, registry))


class OnceOnly(Greet):
    greeted: list[str] = []  # noqa: RUF012 - the fault

    def run(self, args, registry):
        assert not self.greeted
        self.greeted.append(args.who)
        return super().run(args, registry)


class Crashes(Greet):
    def run(self, args, registry):
        if args.who == "nobody":
            raise KeyError(args.who)
        return super().run(args, registry)


class Pretends(Greet):
    def run(self, args, registry):
        return 0


@pytest.mark.parametrize(
    ("command", "test"),
    [
        (WithoutExample, "test_the_help_says_what_it_does_and_shows_how"),
        (WithoutDescription, "test_the_help_says_what_it_does_and_shows_how"),
        (OldExample, "test_the_examples_are_calls_that_the_parser_takes"),
        (SilentArgument, "test_every_argument_explains_itself"),
        (TakesAnything, "test_an_unknown_option_is_wrong_usage"),
        (ReturnsNothing, "test_it_runs_and_says_how_it_went"),
        (ReturnsTruth, "test_it_runs_and_says_how_it_went"),
        (Exits, "test_it_runs_and_says_how_it_went"),
        (OnceOnly, "test_it_runs_twice_in_a_process"),
        (Crashes, "test_a_fault_of_the_user_is_no_crash"),
        (Pretends, "test_a_fault_of_the_user_is_no_crash"),
    ],
)
def test_a_command_that_breaks_a_promise_is_rejected(command: type[Command], test: str) -> None:
    assert test in verdict(command)
