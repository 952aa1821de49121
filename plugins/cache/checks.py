"""What managers are not given: specs they cannot serve, forks that cannot be, surplus tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from camshaft.errors import CamshaftError

from .matching import passed_pages

if TYPE_CHECKING:
    from collections.abc import Collection

    from camshaft.contracts.cache import CacheSpec, GroupSpec, Prefix

    from .tables import PageTables


class Open(Protocol):
    """What is checked of an open request."""

    uid: int
    prefix: Prefix
    committed: int

    @property
    def pages(self) -> int:
        """Pages of its table."""
        ...


def check_spec(
    spec: CacheSpec, name: str = "paged", kinds: Collection[str] = ("full", "sliding")
) -> None:
    """Refuse what cannot be managed.

    Args:
        spec: What is asked for.
        name: Of the manager.
        kinds: Of group that it manages.

    Raises:
        CamshaftError: Lists every fault.
    """
    faults = [
        fault for place, group in enumerate(spec.groups) for fault in _faults(place, group, kinds)
    ]
    if not spec.groups:
        faults.append("there are no KV groups")
    if spec.page_tokens < 1:
        faults.append(f"a page holds {spec.page_tokens} tokens")
    if faults:
        sliding = ", and sliding ones with a window of at least 1" if "sliding" in kinds else ""
        raise CamshaftError(
            f"cache '{name}' cannot serve this: {'; '.join(faults)}. It manages full groups"
            f"{sliding}, of at least 1 page each."
        )


def keeps_all(kinds: Collection[str]) -> list[str]:
    """Say why a manager that gives up no page cannot serve groups of these kinds."""
    return [
        f"it keeps all tokens, and the model has {one} layers. Choose cache 'paged'."
        for one in sorted(set(kinds) - {"full"})
    ]


def _faults(place: int, group: GroupSpec, kinds: Collection[str]) -> list[str]:
    faults = []
    if group.kind not in kinds:
        faults.append(f"group {place} is a {group.kind} group")
    elif (group.kind == "sliding") != (group.window > 0):
        faults.append(f"group {place} is {group.kind}, with a window of {group.window}")
    if group.pages < 1:
        faults.append(f"group {place} has {group.pages} pages")
    return faults


def check_fork_text(source: Open, prefix: Prefix, at: int, page_tokens: int) -> None:
    """Refuse a fork of `source` after `at` tokens with another text, or longer than its pages.

    Raises:
        ValueError: Says why.
    """
    own = source.prefix
    if not 0 <= at <= source.pages * page_tokens:
        raise ValueError(f"request {source.uid} has no pages for {at} tokens")
    if (prefix.salt, prefix.adapter, prefix.scope) != (own.salt, own.adapter, own.scope):
        raise ValueError(f"a fork of request {source.uid} has another salt, adapter or scope")
    if prefix.origin != own.origin:
        raise ValueError(f"a fork of request {source.uid} has another origin")
    if prefix.tokens[:at] != own.tokens[:at]:
        raise ValueError(f"a fork of request {source.uid} differs from it before token {at}")


def check_commit(request: Open, tokens: int, page_tokens: int) -> None:
    """Refuse a commit of more tokens than are known, or have pages.

    Raises:
        ValueError: Says how many there are.
    """
    most = min(len(request.prefix.tokens), request.pages * page_tokens)
    if tokens > most:
        raise ValueError(f"request {request.uid} commits {tokens} tokens, but has only {most}")


def check_shrink(request: Open, tokens: int) -> None:
    """Refuse to take back what is committed.

    Raises:
        ValueError: Says how much that is.
    """
    if tokens < request.committed:
        raise ValueError(
            f"request {request.uid} cannot shrink to {tokens} tokens: "
            f"{request.committed} are committed"
        )


def check_fork(spec: CacheSpec, source: PageTables, prefix: Prefix, at: int) -> None:
    """Refuse a fork of `source` after `at` tokens that would share what it must not.

    Raises:
        ValueError: Says why.
    """
    size = spec.page_tokens
    check_fork_text(source, prefix, at, size)
    for place, group in enumerate(spec.groups):
        needed = range(passed_pages(at, group.window, size), -(-at // size))
        if needed and source.passed[place] > needed[0]:
            raise ValueError(
                f"request {source.uid} has given up pages of group {place} that a fork at "
                f"{at} tokens needs"
            )
