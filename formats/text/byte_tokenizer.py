"""A tokenizer without a vocabulary file: one token a byte, for models with random weights."""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from .alphabet import CHARACTER_OF
from .tokenizer import Tokenizer

CONTROL_LITERALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
"""Control tokens, with the ids 256, 257 and 258."""

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML, written with these tokens."""


def byte_tokenizer() -> Tokenizer:
    """Build it: id 0-255 is that byte, then come the control tokens; EOS are the first and last."""
    vocabulary = {character: byte for byte, character in CHARACTER_OF.items()}
    rules = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    rules.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rules.decoder = decoders.ByteLevel()
    rules.add_special_tokens(
        [tokenizers.AddedToken(text, special=True, normalized=False) for text in CONTROL_LITERALS]
    )
    return Tokenizer(rules, eos_ids=(256, 258), where="byte tokenizer")
