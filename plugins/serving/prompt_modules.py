"""Prompt schemas: named modules of text at fixed positions, of which requests name some.

Source: Gim et al., "Prompt Cache: Modular Attention Reuse for Low-Latency Inference", MLSys 2024
(arXiv 2311.04934), section 3. Departures: a schema is JSON, not PML; modules are padded to whole
pages of the cache with `pad`; and there are neither parameters nor modules inside modules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from camshaft.errors import RequestError, did_you_mean
from camshaft.generate import check_name
from camshaft.request import TokenSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.generate import Prompter

LATER = frozenset({"params", "parameters", "modules", "scaffolds"})
"""What the paper's schemas have beside these, and what is refused by name."""


@dataclass(frozen=True, slots=True)
class Text:
    """A module as it was sent.

    Attributes:
        name: Unique in the schema.
        text: Not empty.
    """

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Schema:
    """Modules with their places.

    Attributes:
        name: Of the schema.
        modules: By name, in order of position. Those of a union begin at the same one.
    """

    name: str
    modules: dict[str, TokenSpan]

    def chosen(self, names: Sequence[str]) -> tuple[TokenSpan, ...]:
        """Return the modules of these names, in order of position.

        Raises:
            RequestError: There is no such module, or two take the same place.
        """
        if not names:
            raise RequestError("modules names none", param="modules")
        for name in names:
            if name not in self.modules:
                hint = did_you_mean(name, self.modules)
                message = f"schema '{self.name}' has no module '{name:.100}'{hint}"
                raise RequestError(message, param="modules")
        if len(set(names)) < len(names):
            raise RequestError("modules names one twice", param="modules")
        found = [one for one in self.modules if one in set(names)]
        behind, before = 0, ""
        for name in found:
            span = self.modules[name]
            assert span.position is not None
            if span.position < behind:
                message = f"'{before}' and '{name}' are of one union: only one can be used"
                raise RequestError(message, param="modules")
            behind, before = span.position + len(span.ids), name
        return tuple(self.modules[name] for name in found)


def read_places(given: object) -> list[list[Text]]:
    """Return the places of a schema, each with the modules that can stand there.

    Args:
        given: What stands under `modules`: modules `{name, text}` and unions of them.

    Raises:
        RequestError: It is something else. Names the fault.
    """
    if not isinstance(given, list) or not given:
        raise _refusal("must be a list of modules, and not be empty")
    places = [_place(one) for one in given]
    names = [one.name for place in places for one in place]
    twice = {one for one in names if names.count(one) > 1}
    if twice:
        raise _refusal(f"has two modules called '{min(twice):.100}'")
    return places


def _place(given: object) -> list[Text]:
    if isinstance(given, dict) and set(given) == {"union"}:
        union = given["union"]
        if not isinstance(union, list) or not union:
            raise _refusal("has a union that is not a list of modules")
        return [_module(one) for one in union]
    return [_module(given)]


def _module(given: object) -> Text:
    fields: dict[str, Any] = given if isinstance(given, dict) else {}
    for name in sorted(LATER.intersection(fields)):
        raise RequestError(
            f"modules: '{name}' of a module is not supported", param="modules", code="unsupported"
        )
    if set(fields) != {"name", "text"} or not all(
        isinstance(one, str) and one for one in fields.values()
    ):
        raise _refusal("holds what is neither {name, text}, both texts, nor {union: [...]}")
    check_name("modules.name", fields["name"])
    return Text(fields["name"], fields["text"])


def _refusal(fault: str) -> RequestError:
    return RequestError(f"modules {fault}", param="modules")


async def lay_out(
    name: str, places: list[list[Text]], prompter: Prompter, page_tokens: int, pad: str
) -> Schema:
    """Tokenise the modules of a schema and give each its position.

    Args:
        name: Of the schema.
        places: See `read_places`.
        prompter: Tokenises.
        page_tokens: Modules become a multiple of it.
        pad: Text of one token, which fills them up.

    Raises:
        RequestError: A module is too long, or `pad` is not one token.
    """
    filler = await prompter.encode(pad, param="pad", affixes=False)
    if len(filler) != 1:
        raise RequestError(
            f"server.routes: the pad {pad!r:.40} of 'prompt_schemas' has {len(filler)} tokens; "
            "choose a text that is one",
            param="modules",
            status=500,
        )
    modules, position = dict[str, TokenSpan](), 0
    for place in places:
        longest = 0
        for one in place:
            ids = await prompter.encode(one.text, param="modules", affixes=position == 0)
            ids = [*ids, *filler * (-len(ids) % page_tokens)]
            modules[one.name] = TokenSpan(ids, position)
            longest = max(longest, len(ids))
        position += longest
    return Schema(name, modules)
