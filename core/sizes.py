"""Sizes in settings: bytes as an integer, or text such as `2GiB`."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_bytes(value: object) -> object:
    """Turn `2GiB` or `500 MB` into bytes; pass on anything that is not text with digits."""
    if not isinstance(value, str) or value == "auto":
        return value
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())
    if match is None or match[2] not in _UNITS:
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ValueError(f"'{value}' is no size; write bytes, or a number with one of {units}")
    return int(float(match[1]) * _UNITS[match[2]])


Bytes = Annotated[int, Field(gt=0), BeforeValidator(parse_bytes, json_schema_input_type=int | str)]
"""A size: bytes as an integer, or text such as `2GiB`."""
