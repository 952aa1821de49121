"""A tokenizer from the metadata of a GGUF file.

Pre-tokenizers by the names that llama.cpp gives them (`tokenizer.ggml.pre`, `llama-vocab.cpp`). The
patterns are those of the models' own `tokenizer.json`. An unknown name is refused: with the wrong
rules a model still answers, only worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers as pre

from camshaft.errors import CheckpointError, did_you_mean

from .tokenizer import Tokenizer as CamshaftTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenizers.pre_tokenizers import PreTokenizer

_T = TypeVar("_T")

# Numbers of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_MARKS_AND_SPACES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_MARKS_AND_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_MARKS_AND_SPACES}"


def _gpt2() -> PreTokenizer:
    return pre.ByteLevel(add_prefix_space=False)


def _smollm() -> PreTokenizer:
    return pre.Sequence([pre.Digits(individual_digits=True), _gpt2()])


def _split(*patterns: str) -> PreTokenizer:
    splits: list[PreTokenizer] = [pre.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre.Sequence([*splits, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def _default() -> PreTokenizer:
    words = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    return _split(r"[\p{P}\$\+<=>\^~\|]+", words, r"\p{N}+", "[0-9][0-9][0-9]")


_PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "default": _default,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
}
_ADDS_BOS = frozenset({"llama-bpe"})
"""Those that start with BOS where the file does not say."""


def read_gguf_tokenizer(metadata: Mapping[str, Any], where: str) -> CamshaftTokenizer:
    """Build the tokenizer.

    Args:
        metadata: Of the file.
        where: Its path, for messages.

    Raises:
        CheckpointError: An unknown kind or pre-tokenizer, or lists that do not fit together.
    """
    reader = _Reader(metadata, where)
    kind = reader.get("model", str)
    if kind != "gpt2":
        raise CheckpointError(
            f"{where}: tokenizer.ggml.model '{kind}' is not supported; 'gpt2' (byte-level BPE) is. "
            "Give the folder with the model's tokenizer.json and safetensors instead."
        )
    name = reader.get("pre", str)
    if name not in _PRE_TOKENIZERS:
        raise CheckpointError(
            f"{where}: pre-tokenizer '{name}' is not supported"
            f"{did_you_mean(name, _PRE_TOKENIZERS)}; {', '.join(_PRE_TOKENIZERS)} are."
        )
    rules = _rules(reader, name)
    bos, eos = reader.special_id("bos_token_id"), reader.special_id("eos_token_id")
    adds_bos = reader.get("add_bos_token", bool, name in _ADDS_BOS)
    adds_eos = reader.get("add_eos_token", bool, default=False)
    if (adds_bos and bos is None) or (adds_eos and eos is None):
        raise CheckpointError(f"{where}: tokenizer.ggml says to add BOS or EOS but names none.")
    ends = (eos, reader.special_id("eot_token_id"), reader.special_id("eom_token_id"))
    return CamshaftTokenizer(
        rules,
        bos_id=bos,
        pad_id=reader.special_id("padding_token_id"),
        eos_ids=[token for token in ends if token is not None],
        prefix_ids=[bos] if adds_bos and bos is not None else [],
        suffix_ids=[eos] if adds_eos and eos is not None else [],
        where=where,
    )


def _rules(reader: _Reader, name: str) -> Tokenizer:
    tokens = reader.get("tokens", list)
    types = reader.get("token_type", list, [1] * len(tokens))
    if len(types) != len(tokens):
        raise CheckpointError(
            f"{reader.where}: tokenizer.ggml.token_type has {len(types)} entries, but "
            f"tokenizer.ggml.tokens has {len(tokens)}."
        )
    merges = [tuple(merge.split(" ", 1)) for merge in reader.get("merges", list)]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=name == "llama-bpe")
    except Exception as error:  # noqa: BLE001 - the library raises bare exceptions
        raise CheckpointError(
            f"{reader.where}: tokens and merges do not fit together: {error}."
        ) from None
    rules = Tokenizer(model)
    if name == "qwen2":
        rules.normalizer = normalizers.NFC()
    rules.pre_tokenizer = _PRE_TOKENIZERS[name]()
    rules.decoder = decoders.ByteLevel()
    control = [token for token, type in zip(tokens, types, strict=True) if type == _CONTROL]
    ours = [token for token, type in zip(tokens, types, strict=True) if type == _USER_DEFINED]
    rules.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    rules.add_tokens([AddedToken(t, special=False, normalized=False) for t in ours])
    return rules


class _Reader:
    """Reads `tokenizer.ggml.*` with types checked."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self._metadata = metadata
        self.where = where

    def get(self, key: str, type: type[_T], default: _T | None = None) -> _T:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, type):
            found = "missing" if value is None else f"no {type.__name__}"
            raise CheckpointError(f"{self.where}: tokenizer.ggml.{key} is {found}.")
        return value

    def special_id(self, key: str) -> int | None:
        if f"tokenizer.ggml.{key}" not in self._metadata:
            return None
        id, count = self.get(key, int), len(self.get("tokens", list))
        if not 0 <= id < count:
            raise CheckpointError(
                f"{self.where}: tokenizer.ggml.{key} is {id}, outside the {count} tokens."
            )
        return id
