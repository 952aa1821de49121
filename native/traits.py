"""What a torch operation does to its arguments and results, as far as a recording must know."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ALLOCATES = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
                 "new_empty_strided")
)  # fmt: skip
_COPIES = frozenset({"aten::_to_copy", "aten::clone", "aten::lift_fresh"})
_CHANGES_SIZE = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})
_OF_RESULT = frozenset({"dtype", "layout", "device", "pin_memory"})


class Traits(NamedTuple):
    """Of an operation.

    Attributes:
        allocates: Its result is void.
        copies: Its result has the elements of its first argument.
        renames: It changes how a tensor is seen, not what it holds.
        writes: Places of arguments that it writes to.
        writes_named: The same of arguments by name.
        is_random: It draws from torch's generator.
        out: The same operation with tensors for its results, and their names.
        against: Why no recording can hold it, or None.
    """

    allocates: bool
    copies: bool
    renames: bool
    writes: tuple[int, ...]
    writes_named: tuple[str, ...]
    is_random: bool
    out: tuple[Any, tuple[str, ...]] | None
    against: str | None

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Return the tensors among its arguments that a call writes to."""
        given = [args[at] for at in self.writes if at < len(args)]
        given += [kwargs[name] for name in self.writes_named if name in kwargs]
        several = (one if isinstance(one, list | tuple) else (one,) for one in given)
        return [one for some in several for one in some if isinstance(one, torch.Tensor)]


@cache
def traits_of(operation: Any) -> Traits:  # noqa: ANN401 - torch's OpOverload
    """Return what is known of an operation from its schema and tags."""
    schema = operation._schema
    written = [
        (at, one.name)
        for at, one in enumerate(schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    ]
    return Traits(
        allocates=schema.name in _ALLOCATES and not written,
        copies=schema.name in _COPIES and not written,
        renames=torch.Tag.inplace_view in operation.tags,
        writes=tuple(at for at, _ in written),
        writes_named=tuple(name for _, name in written),
        is_random=torch.Tag.nondeterministic_seeded in operation.tags,
        out=None if written else _with_out(operation),
        against=_against(operation),
    )


def _against(operation: Any) -> str | None:  # noqa: ANN401
    schema = operation._schema
    if torch.Tag.data_dependent_output in operation.tags:
        return "it hands a tensor's elements to the host"
    if torch.Tag.dynamic_output_shape in operation.tags and schema.name != "aten::index":
        return "the size of its result depends on what its tensors hold"
    if schema.name in _CHANGES_SIZE:
        return "it changes where a tensor stands"
    if any("Tensor" not in str(one.type) for one in schema.returns):
        return "it returns something else than tensors"
    return None


def _with_out(operation: Any) -> tuple[Any, tuple[str, ...]] | None:  # noqa: ANN401
    """Find the overload that takes the same arguments and writes its results where it is told."""
    wanted = {one.name: str(one.type) for one in operation._schema.arguments}
    packet = operation.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        arguments = other._schema.arguments
        outs = tuple(one.name for one in arguments if _is_out(one))
        rest = {one.name: str(one.type) for one in arguments if not _is_out(one)}
        if len(outs) != len(operation._schema.returns) or not outs:
            continue
        missing = wanted.keys() - rest.keys()
        if missing <= _OF_RESULT and rest.items() <= wanted.items():
            return other, outs
    return None


def _is_out(argument: Any) -> bool:  # noqa: ANN401
    # a list of tensors to write to would have to be as long as the result
    return bool(argument.is_out) and str(argument.type) == "Tensor"
