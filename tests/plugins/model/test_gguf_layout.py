"""GGUF files hold query and key rows in an order of their own, for some architectures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from camshaft.plugins.model.names import rotary_rows
from camshaft.testing.model import run

from .gguf_files import built, random_model, write_gguf

TOKENS = [(13 * at + 5) % 80 for at in range(64)]


@pytest.mark.parametrize(
    ("name", "architecture", "fields"),
    [
        ("Llama", "llama", {"tie_word_embeddings": True}),
        ("Llama", "llama", {"attention_bias": True}),
        (
            "Qwen2",
            "qwen2",
            {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2},
        ),
        ("Qwen3", "qwen3", {}),
    ],
)
def test_GGF_01_both_files_of_a_model_give_the_same_logits(
    name: str, architecture: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    model = random_model(name, **fields)
    model.save_pretrained(tmp_path / "folder")
    write_gguf(model, tmp_path / "model.gguf", architecture)
    from_folder = run(built(tmp_path / "folder"), TOKENS)
    from_gguf = run(built(tmp_path / "model.gguf"), TOKENS)
    torch.testing.assert_close(from_gguf, from_folder, rtol=0, atol=1e-4)
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(from_gguf, expected, rtol=0, atol=1e-4)


def test_rows_that_rotate_together_are_neighbours_in_the_file() -> None:
    rows = rotary_rows(heads=2, head_dim=6, rotated=6)
    assert rows.tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_rows_that_do_not_rotate_stay_in_place() -> None:
    assert rotary_rows(heads=1, head_dim=6, rotated=4).tolist() == [0, 2, 1, 3, 4, 5]
