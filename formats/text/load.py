"""Everything about text that comes with a model: tokenizer, template, EOS ids, defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from camshaft.errors import CheckpointError

from .byte_tokenizer import CHAT_TEMPLATE, byte_tokenizer
from .folder import read_folder_tokenizer, read_pooling, read_special_texts, read_templates
from .gguf_tokenizer import read_gguf_tokenizer
from .template import ChatTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from camshaft.checkpoint.config import GenerationDefaults
    from camshaft.checkpoint.source import Checkpoint

    from .tokenizer import Tokenizer

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end_of_turn|>")
"""Control tokens that end a turn. One that the chat template writes ends the answer as well."""

_GGUF_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


@dataclass(frozen=True, slots=True)
class TextModel:
    """The text side of a model.

    Attributes:
        tokenizer: Text to ids and back.
        template: Messages to ids; refuses them when the model has no template.
        eos_ids: Every id that ends an answer, ascending: those that the files name, and the end of
            turn that the chat template writes.
        generation: Recommended sampling.
        pooling: How the model makes a vector of a text, where its files say so; a name of
            `camshaft.request.Pooling`, or of what there is not.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    eos_ids: tuple[int, ...]
    generation: GenerationDefaults
    pooling: str | None = None


def load_text(checkpoint: Checkpoint) -> TextModel:
    """Build the text side of a model from its files.

    Raises:
        CheckpointError: The tokenizer is missing, damaged, not supported or larger than the model.
    """
    source = checkpoint.text
    if source.kind == "gguf":
        tokenizer = read_gguf_tokenizer(source.metadata, str(source.where))
        template = _gguf_template(source.metadata, tokenizer, str(source.where))
    elif source.kind == "files":
        tokenizer = read_folder_tokenizer(source.where)
        template = _folder_template(source.where, tokenizer)
    else:
        tokenizer = byte_tokenizer()
        template = ChatTemplate(CHAT_TEMPLATE, tokenizer)
    if tokenizer.vocab_size > checkpoint.config.vocab:
        raise CheckpointError(
            f"{source.where}: the tokenizer has {tokenizer.vocab_size} ids, but the model has "
            f"{checkpoint.config.vocab}."
        )
    eos = {*checkpoint.config.eos_ids, *tokenizer.eos_ids, *_turn_ends(tokenizer, template)}
    return TextModel(
        tokenizer,
        template,
        tuple(sorted(eos)),
        checkpoint.config.generation,
        read_pooling(source.where) if source.kind == "files" else None,
    )


def _turn_ends(tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    written = template.source or ""
    control = tokenizer.control_ids
    return [control[text] for text in _TURN_ENDS if text in control and text in written]


def _gguf_template(metadata: Mapping[str, Any], tokenizer: Tokenizer, where: str) -> ChatTemplate:
    ids = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in _GGUF_SPECIAL.items()}
    texts = {name: tokenizer.literal(id) for name, id in ids.items() if isinstance(id, int)}
    return ChatTemplate(
        metadata.get("tokenizer.chat_template"),
        tokenizer,
        tool_source=metadata.get("tokenizer.chat_template.tool_use"),
        special_texts={name: text for name, text in texts.items() if text is not None},
        where=f"{where}: tokenizer.chat_template",
    )


def _folder_template(folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    sources = read_templates(folder)
    return ChatTemplate(
        sources.get("default"),
        tokenizer,
        tool_source=sources.get("tool_use"),
        special_texts=read_special_texts(folder),
        where=f"{folder}: chat template",
    )
