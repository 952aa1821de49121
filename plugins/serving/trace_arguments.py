"""The arguments that keep a step for a report of a fault."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import TYPE_CHECKING

from camshaft.executor.trace_files import TraceOrder, check_order

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

_FAILED = "failed"


def add_trace_arguments(parser: ArgumentParser) -> None:
    """Declare `--trace` and `--trace-step`."""
    parser.add_argument(
        "--trace",
        metavar="FOLDER",
        help="write one step to a folder, for `engine trace`; it holds the token ids of requests",
    )
    parser.add_argument(
        "--trace-step",
        type=_step,
        default="1",
        metavar="N",
        help="which one after the start, or 'failed': the first that raises or has logits that are "
        "not finite (1)",
    )


def trace_order(args: Namespace) -> TraceOrder | None:
    """Return what the arguments ask for.

    Raises:
        TraceError: The folder holds a trace already.
    """
    if args.trace is None:
        return None
    order = TraceOrder(args.trace, None if args.trace_step == _FAILED else args.trace_step)
    check_order(order)
    return order


def _step(text: str) -> int | str:
    if text == _FAILED:
        return text
    if not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"'{text}' is neither a number from 1 nor '{_FAILED}'")
    return int(text)
