"""Tokenizer and chat templates of a Hugging Face model folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import tokenizers

from camshaft.errors import CheckpointError

from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

_POOLINGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last"}
_MODE = "pooling_mode_"

_SPECIAL_NAMES = (
    *("bos_token", "eos_token", "unk_token", "pad_token"),
    *("sep_token", "cls_token", "mask_token"),
)


def read_folder_tokenizer(folder: Path) -> Tokenizer:
    """Build the tokenizer from `tokenizer.json` and `tokenizer_config.json`.

    `add_bos_token` and `add_eos_token` of the second decide, where they are, over the first's
    post-processor.

    Raises:
        CheckpointError: It is missing, damaged or of a kind that is not supported.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"{path}: there is no such file. A sentencepiece 'tokenizer.model' alone is not read; "
            "save the tokenizer with transformers as a fast one."
        )
    try:
        rules = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises bare exceptions
        raise CheckpointError(f"{path}: {error}.") from None
    # Settings of whoever trained it, which would cut or pad prompts.
    rules.no_truncation()
    rules.no_padding()
    config = _read_json(folder / "tokenizer_config.json")
    _add_missing_tokens(rules, config, folder)
    ids = {name: rules.token_to_id(text) for name, text in read_special_texts(folder).items()}
    bos, eos = ids.get("bos_token"), ids.get("eos_token")
    prefix, suffix = _affixes(rules)
    return Tokenizer(
        rules,
        bos_id=bos,
        pad_id=ids.get("pad_token"),
        eos_ids=[eos] if eos is not None else [],
        prefix_ids=_chosen(config.get("add_bos_token"), bos, prefix),
        suffix_ids=_chosen(config.get("add_eos_token"), eos, suffix),
        where=str(path),
    )


def read_special_texts(folder: Path) -> dict[str, str]:
    """Return the literals of `bos_token`, `eos_token` and so on, those that the model has."""
    older, config = (
        _read_json(folder / name) for name in ("special_tokens_map.json", "tokenizer_config.json")
    )
    texts = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name) or older.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            texts[name] = text
    return texts


def read_templates(folder: Path) -> dict[str, str]:
    """Return chat templates by name; the usual one is `default`.

    `chat_template.jinja` and `additional_chat_templates/` win over `tokenizer_config.json`.
    """
    value = _read_json(folder / "tokenizer_config.json").get("chat_template")
    named: list[Any] = value if isinstance(value, list) else []
    try:
        templates = {str(entry["name"]): str(entry["template"]) for entry in named}
    except (TypeError, KeyError):
        raise CheckpointError(
            f"{folder / 'tokenizer_config.json'}: chat_template is no list of names and templates."
        ) from None
    if isinstance(value, str):
        templates["default"] = value
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[path.stem] = path.read_text(encoding="utf-8")
    single = folder / "chat_template.jinja"
    if single.is_file():
        templates["default"] = single.read_text(encoding="utf-8")
    return templates


def read_pooling(folder: Path) -> str | None:
    """Return how vectors are pooled, where sentence-transformers wrote files that say it.

    What is no `Pooling` of ours keeps the name that it has there; several are joined by `+`.
    """
    modes = _read_json(folder / "1_Pooling" / "config.json")
    chosen = [name.removeprefix(_MODE) for name, value in modes.items() if value is True]
    chosen = [one for one in chosen if _MODE + one in modes]
    return "+".join(_POOLINGS.get(one, one) for one in chosen) or None


def _add_missing_tokens(rules: tokenizers.Tokenizer, config: dict[str, Any], folder: Path) -> None:
    """Add the tokens that only `tokenizer_config.json` knows; their ids must come out as stated."""
    stated = config.get("added_tokens_decoder") or {}
    for id, token in sorted((int(id), token) for id, token in stated.items()):
        text = token["content"]
        if rules.token_to_id(text) is None:
            flags = {key: bool(token.get(key)) for key in ("lstrip", "rstrip", "single_word")}
            added = tokenizers.AddedToken(text, normalized=bool(token.get("normalized")), **flags)
            add = rules.add_special_tokens if token.get("special") else rules.add_tokens
            add([added])
        if rules.token_to_id(text) != id:
            raise CheckpointError(
                f"{folder / 'tokenizer_config.json'}: '{text}' is stated as id {id}, but "
                f"tokenizer.json makes it {rules.token_to_id(text)}."
            )


def _affixes(rules: tokenizers.Tokenizer) -> tuple[list[int], list[int]]:
    """Return the ids that the post-processor puts before and after a text."""
    probe = rules.encode("a", add_special_tokens=False).ids
    framed = rules.encode("a", add_special_tokens=True).ids
    before = next(i for i in range(len(framed)) if framed[i : i + len(probe)] == probe)
    return framed[:before], framed[before + len(probe) :]


def _chosen(flag: object, id: int | None, default: list[int]) -> list[int]:
    if not isinstance(flag, bool):
        return default
    return [id] if flag and id is not None else []


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds no JSON object.")
    return content
