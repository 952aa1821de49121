"""A tokenizer for tests that need no model file: one token a byte."""

from __future__ import annotations

from ..text.byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer

__all__ = ["CHAT_TEMPLATE", "byte_tokenizer"]
