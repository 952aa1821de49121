"""Tokenizers, chat templates and incremental detokenisation."""

from __future__ import annotations

from .detokenize import Detokenizer
from .load import TextModel, load_text
from .stops import StopStrings
from .template import ChatTemplate
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopStrings", "TextModel", "Tokenizer", "load_text"]
