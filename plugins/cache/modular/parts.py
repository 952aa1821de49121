"""What a request with modules is to the cache below: a request for each module, and its own."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

from camshaft.contracts.cache import Prefix

if TYPE_CHECKING:
    from collections.abc import Iterator

ORIGIN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Module:
    """A module of a request.

    Attributes:
        uid: Of the request below that holds its pages.
        prefix: Its tokens; they never grow.
    """

    uid: int
    prefix: Prefix


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """A request, taken apart.

    Attributes:
        prefix: The request's.
        modules: In order.
        own: What follows them, or a module that is a request by itself.
        before: Tokens of all modules.
        generation: In which what follows is found again.
    """

    prefix: Prefix
    modules: tuple[Module, ...]
    own: Prefix
    before: int
    generation: int

    def follow(self) -> Prefix:
        """Return `own` with all tokens that are known by now."""
        known, own = self.prefix.tokens, self.own.tokens
        if self.before and len(own) < len(known) - self.before:
            own += known[self.before + len(own) :]
        return self.own


def take_apart(prefix: Prefix, uids: Iterator[int], generation: int) -> Parts:
    """Return the parts of a prefix with runs.

    Args:
        prefix: Of the request.
        uids: Gives names for requests below.
        generation: See `Parts`.
    """
    runs, modules, named = prefix.runs, list[Module](), [generation]
    for run, after in pairwise(runs):
        tokens = prefix.tokens[run.first : after.first]
        modules.append(Module(next(uids), _part(prefix, tokens, _module_origin(run.position))))
        named += [run.position, len(tokens), *tokens]
    last = runs[-1]
    if not modules:
        own = _part(prefix, prefix.tokens, _module_origin(last.position))
    else:
        origin = _origin([*named, last.position], b"composed")
        own = _part(prefix, prefix.tokens[last.first :], origin)
    own.most_tokens = max(0, prefix.most_tokens - last.first)
    return Parts(prefix, tuple(modules), own, last.first, generation)


def _part(prefix: Prefix, tokens: list[int], origin: bytes) -> Prefix:
    return Prefix(
        tokens,
        prefix.salt,
        prefix.adapter,
        prefix.priority,
        prefix.scope,
        most_tokens=len(tokens),
        origin=origin,
    )


def _module_origin(position: int) -> bytes:
    """Return what a module's pages depend on; at 0 they are those of an ordinary text."""
    return _origin([position], b"module") if position else b""


def _origin(numbers: list[int], kind: bytes) -> bytes:
    data = array("q", numbers).tobytes()
    return blake2b(data, digest_size=ORIGIN_BYTES, person=kind).digest()
