"""A tokenizer for tests that need no model file: one token a byte."""

from __future__ import annotations

from camshaft.checkpoint.config import GenerationDefaults
from camshaft.text import ChatTemplate, TextModel
from camshaft.text.byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer

__all__ = ["CHAT_TEMPLATE", "byte_text", "byte_tokenizer"]


def byte_text(template: str | None = CHAT_TEMPLATE) -> TextModel:
    """Return the text side of a model whose tokens are bytes."""
    tokenizer = byte_tokenizer()
    chat = ChatTemplate(template, tokenizer)
    return TextModel(tokenizer, chat, tokenizer.eos_ids, GenerationDefaults())
