"""The tokens of a prefix as bytes, so that texts are compared and hashed as memory."""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.contracts.cache import Prefix

TOKEN_BYTES = 4
"""Little-endian int32."""

_MEMO = "tokens as int32"


def token_bytes(prefix: Prefix, tokens: int) -> bytearray:
    """Return at least the first `tokens` tokens as bytes; they are kept, and not to be changed.

    The first call converts no more than it asks for, since many prefixes are known from nowhere.
    """
    known: bytearray | None = prefix.memo.get(_MEMO)
    if known is None:
        known = prefix.memo[_MEMO] = bytearray()
    done = len(known) // TOKEN_BYTES
    if done < tokens:
        new = prefix.tokens[done:] if done else prefix.tokens[:tokens]
        known += pack(f"<{len(new)}i", *new)
    return known
