"""The printable alphabet in which byte-level vocabularies write bytes.

Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (GPT-2), whose
vocabulary files started it: a byte that is a visible Latin-1 character stands for itself, the
others take the characters from U+0100 on, in order.
"""

from __future__ import annotations

_VISIBLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]

CHARACTER_OF: dict[int, str] = {
    byte: chr(byte) if byte in _VISIBLE else chr(0x100 + _HIDDEN.index(byte)) for byte in range(256)
}
"""Byte to character, in the order of bytes."""

BYTE_OF: dict[str, int] = {character: byte for byte, character in CHARACTER_OF.items()}
"""Character to byte."""
