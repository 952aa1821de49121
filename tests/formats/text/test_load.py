"""The text side of a model, from each kind of source."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors

from camshaft.checkpoint import Checkpoint, random_checkpoint
from camshaft.errors import CheckpointError, RequestError
from camshaft.testing.text import byte_tokenizer
from camshaft.text import TextModel, load_text

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 300,
    "eos_token_id": 7,
}


class Folder:
    """A model folder with the byte tokenizer as `tokenizer.json`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rules: tokenizers.Tokenizer = byte_tokenizer()._rules

    def load(self, vocab: int = 300, **tokenizer_config: Any) -> TextModel:
        self.rules.save(str(self.path / "tokenizer.json"))
        (self.path / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
        config = {**CONFIG, "vocab_size": vocab}
        return load_text(random_checkpoint(config, where=self.path / "config.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_folder_gives_tokenizer_template_and_every_eos(folder: Folder) -> None:
    text = folder.load(
        eos_token={"content": "<|endoftext|>"},
        bos_token="<|im_start|>",
        pad_token=None,
        chat_template="{{ bos_token }}{{ messages[0].content }}<|im_end|>",
    )
    assert text.tokenizer.bos_id == 257
    assert text.eos_ids == (7, 256, 258)
    assert text.template.render([{"role": "user", "content": "a"}]) == [257, 97, 258]


def test_a_template_file_wins_and_named_ones_are_for_tools(folder: Folder) -> None:
    (folder.path / "chat_template.jinja").write_text("file")
    named = [{"name": "default", "template": "named"}, {"name": "tool_use", "template": "tools"}]
    text = folder.load(chat_template=named)
    chat = [{"role": "user", "content": ""}]
    assert text.tokenizer.decode(text.template.render(chat)) == "file"
    assert text.tokenizer.decode(text.template.render(chat, tools=[{}])) == "tools"
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template is no list"):
        folder.load(chat_template=[{"name": "default"}])


def test_CHT_01_a_folder_without_a_template_loads_and_refuses_chats(folder: Folder) -> None:
    text = folder.load()
    assert text.tokenizer.encode("a", True) == [97]
    with pytest.raises(RequestError, match="no chat template"):
        text.template.render([{"role": "user", "content": "a"}])


def test_the_post_processor_adds_bos_unless_the_configuration_says_otherwise(
    folder: Folder,
) -> None:
    folder.rules.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 257)]
    )
    assert folder.load().tokenizer.encode("a", True) == [257, 97]
    assert folder.load(add_bos_token=False).tokenizer.encode("a", True) == [97]
    folder.rules.post_processor = processors.ByteLevel()
    assert folder.load(add_bos_token=True, bos_token="<|endoftext|>").tokenizer.encode(
        "a", True
    ) == [
        256,
        97,
    ]


def test_truncation_and_padding_of_the_trainer_are_switched_off(folder: Folder) -> None:
    folder.rules.enable_truncation(4)
    folder.rules.enable_padding(length=8)
    assert folder.load().tokenizer.encode("abcdef", True) == [97, 98, 99, 100, 101, 102]


def test_tokens_that_only_the_configuration_knows_are_added(folder: Folder) -> None:
    text = folder.load(added_tokens_decoder={"259": {"content": "<x>", "special": True}})
    assert text.tokenizer.encode("<x>", True) == [259]
    with pytest.raises(CheckpointError, match="'<y>' is stated as id 290, but .* makes it 259"):
        folder.load(added_tokens_decoder={"290": {"content": "<y>", "special": True}})


def test_a_tokenizer_larger_than_the_model_is_refused(folder: Folder) -> None:
    with pytest.raises(CheckpointError, match="the tokenizer has 259 ids, but the model has 258"):
        folder.load(vocab=258)


def test_a_missing_or_damaged_tokenizer_is_named(folder: Folder) -> None:
    folder.load()
    path = folder.path / "tokenizer.json"
    checkpoint = random_checkpoint(CONFIG, where=folder.path / "config.json")
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: "):
        load_text(checkpoint)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: there is no such file"):
        load_text(checkpoint)


def test_random_weights_without_a_tokenizer_speak_bytes_and_chat() -> None:
    text = load_text(random_checkpoint(CONFIG))
    assert text.tokenizer.encode("é", True) == [0xC3, 0xA9]
    assert text.eos_ids == (7, 256, 258)
    chat = [{"role": "user", "content": "a"}]
    assert text.tokenizer.decode(text.template.render(chat)) == (
        "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.real
def test_GGF_02_the_template_ends_turns_even_where_eos_is_another(
    smollm2_checkpoint: Checkpoint,
) -> None:
    metadata = {**smollm2_checkpoint.text.metadata, "tokenizer.ggml.eos_token_id": 0}
    source = replace(smollm2_checkpoint.text, metadata=metadata)
    config = replace(smollm2_checkpoint.config, eos_ids=(0,))
    text = load_text(replace(smollm2_checkpoint, text=source, config=config))
    assert text.eos_ids == (0, 2)


@pytest.mark.parametrize(
    ("modes", "pooling"),
    [
        (None, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True, "include_prompt": True}, "cls"),
        ({"pooling_mode_lasttoken": True, "word_embedding_dimension": 8}, "last"),
        ({"pooling_mode_max_tokens": True}, "max_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, "cls+mean"),
    ],
    ids=str,
)
def test_a_folder_says_how_vectors_are_pooled(
    folder: Folder, modes: dict[str, Any] | None, pooling: str | None
) -> None:
    if modes is not None:
        (folder.path / "1_Pooling").mkdir()
        (folder.path / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert folder.load().pooling == pooling
