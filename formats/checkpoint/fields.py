"""Typed reading of configuration mappings, with faults that name file and field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from camshaft.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Fields:
    """Reads fields of one mapping. A field that is absent or null takes its default.

    A reader whose default is None refuses a missing field; the `_or_none` ones return None.
    """

    def __init__(self, values: Mapping[str, Any], where: str, prefix: str = "") -> None:
        """Read from `values`, whose keys start with `prefix` in the file called `where`."""
        self.values = values
        self.where = where
        self.prefix = prefix

    def raw(self, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """Return a field as it is, None when absent."""
        return self.values.get(self.prefix + name)

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fault(name, f"must be a whole number of at least {least}, not {value!r}")
        return value

    def size_or_none(self, name: str, *, least: int = 1) -> int | None:
        """Return a whole number of at least `least`, or None."""
        return None if self.raw(name) is None else self.size(name, least=least)

    def number(self, name: str, default: float | None = None, *, zero: bool = False) -> float:
        """Return a number above 0, or from 0 on if `zero`."""
        value = self._get(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (value > 0 or (zero and value == 0)):
            raise self.fault(name, f"must be a number above 0, not {value!r}")
        return float(value)

    def number_or_none(self, name: str, *, zero: bool = False) -> float | None:
        """Return a number like `number`, or None."""
        return None if self.raw(name) is None else self.number(name, zero=zero)

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers."""
        value = self._get(name, None)
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise self.fault(name, "must be a list of numbers")
        return tuple(float(item) for item in value)

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.fault(name, f"must be true or false, not {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.fault(name, f"must be a string, not {value!r}")
        return value

    def token_ids(self, name: str) -> tuple[int, ...]:
        """Return one token id or a list of them as a tuple, empty where absent."""
        value = self.raw(name)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
            raise self.fault(name, f"must be a token id or a list of them, not {value!r}")
        return tuple(ids)

    def token_id(self, name: str) -> int | None:
        """Return a token id; None where it is absent or -1, which older files mean by it."""
        ids = self.token_ids(name)
        return ids[0] if ids and ids[0] != -1 else None

    def fault(self, name: str, text: str) -> CheckpointError:
        """Make the error that says what is wrong with a field."""
        return CheckpointError(f"{self.where}: {self.prefix}{name} {text}.")

    def _get(self, name: str, default: object) -> Any:  # noqa: ANN401 - the readers check it
        value = self.raw(name)
        if value is None and default is None:
            raise self.fault(name, "is missing")
        return default if value is None else value
