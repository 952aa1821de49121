"""Tokenizers from GGUF metadata: each pre-tokenizer, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.errors import CheckpointError
from camshaft.text import Tokenizer
from camshaft.text.alphabet import CHARACTER_OF
from camshaft.text.gguf_tokenizer import read_gguf_tokenizer

TOKENS = [*CHARACTER_OF.values(), "ab", "12", "123", "Ġ1", "<|end|>", "<mark>"]
BASE: dict[str, Any] = {
    "model": "gpt2",
    "pre": "smollm",
    "tokens": TOKENS,
    "token_type": [1] * 260 + [3, 4],
    "merges": ["a b", "Ġ 1", "1 2", "12 3"],
    "bos_token_id": 260,
    "eos_token_id": 260,
}


def read(**changes: Any) -> Tokenizer:
    values = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return read_gguf_tokenizer({f"tokenizer.ggml.{k}": v for k, v in values.items()}, "m.gguf")


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes(id).decode() for id in tokenizer.encode(text, True)]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["ab", " ", "1", "2", "3"]),
        ("qwen2", ["ab", " ", "1", "2", "3"]),
        ("llama-bpe", ["ab", " ", "123"]),
        ("gpt-2", ["ab", " 1", "2", "3"]),
        ("default", ["ab", " ", "123"]),
    ],
)
def test_each_pre_tokenizer_cuts_as_its_models_expect(pre: str, expected: list[str]) -> None:
    assert pieces(read(pre=pre, add_bos_token=False), "ab 123") == expected


def test_qwen2_composes_characters_before_it_cuts() -> None:
    assert read(pre="qwen2").encode("e\u0301", True) == [0xC3, 0xA9]
    assert read(pre="smollm").encode("e\u0301", True) == [ord("e"), 0xCC, 0x81]


def test_bos_is_added_where_the_file_or_the_pre_tokenizer_says_so() -> None:
    assert read().encode("ab", True) == [256]
    assert read(add_bos_token=True).encode("ab", True) == [260, 256]
    assert read(pre="llama-bpe").encode("ab", True) == [260, 256]
    assert read(add_eos_token=True).encode("ab", True) == [256, 260]


def test_control_tokens_are_special_and_user_defined_ones_are_only_whole() -> None:
    tokenizer = read()
    assert tokenizer.encode("<|end|><mark>", True) == [260, 261]
    assert tokenizer.control_ids == {"<|end|>": 260}
    assert tokenizer.encode("<|end|><mark>", False) == [*map(ord, "<|end|>"), 261]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pre": "smolm"}, "pre-tokenizer 'smolm' is not supported; did you mean 'smollm'"),
        ({"model": "llama"}, r"tokenizer\.ggml\.model 'llama' is not supported"),
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"pre": None}, r"tokenizer\.ggml\.pre is missing"),
        ({"tokens": None}, r"tokenizer\.ggml\.tokens is missing"),
        ({"token_type": [1, 2]}, "token_type has 2 entries, but tokenizer.ggml.tokens has 262"),
        ({"eos_token_id": 262}, "eos_token_id is 262, outside the 262 tokens"),
        ({"merges": ["a zz"]}, "tokens and merges do not fit together"),
        ({"merges": ["ab"]}, "tokens and merges do not fit together"),
        ({"add_bos_token": True, "bos_token_id": None}, "to add BOS or EOS but names none"),
        ({"add_bos_token": 1}, "add_bos_token is no bool"),
    ],
)
def test_GGF_02_metadata_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**changes)
