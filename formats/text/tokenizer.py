"""Text to token ids and back, on the `tokenizers` library."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import tokenizers

from camshaft.errors import CheckpointError

from .alphabet import BYTE_OF

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A vocabulary with the rules that cut text into it.

    Safe to use from several threads.

    Attributes:
        bos_id: Id that starts a text, or None.
        pad_id: Id for padding, or None.
        eos_ids: Ids that end a text, ascending.
        control_ids: Ids that are no text: turn markers and their like, by their literal.
        prefix_ids: What the files put before every text, usually nothing or BOS.
        suffix_ids: What they put after it.
    """

    def __init__(
        self,
        rules: tokenizers.Tokenizer,
        *,
        bos_id: int | None = None,
        pad_id: int | None = None,
        eos_ids: Iterable[int] = (),
        prefix_ids: Iterable[int] = (),
        suffix_ids: Iterable[int] = (),
        where: str = "tokenizer",
    ) -> None:
        """Wrap the library's tokenizer, which must not be changed afterwards.

        Args:
            rules: It; its post-processor is not used.
            bos_id: See the attributes, as for the next four.
            pad_id: See the attributes.
            eos_ids: See the attributes.
            prefix_ids: See the attributes.
            suffix_ids: See the attributes.
            where: The file it comes from, for messages.

        Raises:
            CheckpointError: Its decoder is of a kind whose bytes cannot be told token by token.
        """
        self.bos_id = bos_id
        self.pad_id = pad_id
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.prefix_ids = tuple(prefix_ids)
        self.suffix_ids = tuple(suffix_ids)
        added = rules.get_added_tokens_decoder()
        self.control_ids = {token.content: id for id, token in added.items() if token.special}
        self._special = frozenset(self.control_ids.values())
        self._added = {id: token.content.encode() for id, token in added.items()}
        self._rules = rules
        self._plain_rules = _without_control_tokens(rules, added)
        decoder = json.loads(rules.decoder.__getstate__()) if rules.decoder is not None else {}
        self._continues = decoder["prefix"] if decoder.get("type") == "WordPiece" else None
        self._space = None if self._continues else _space_of(decoder, where)
        self._bytes: dict[int, bytes] = {}

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included; the model's may be larger."""
        return self._rules.get_vocab_size(with_added_tokens=True)

    def save(self, path: Path) -> None:
        """Write the rules as a `tokenizer.json`."""
        self._rules.save(str(path))

    def encode(self, text: str, special: bool, *, affixes: bool = True) -> list[int]:
        """Cut text into token ids.

        Args:
            text: Any text.
            special: Whether control-token literals in it (`<|im_end|>`) become these tokens. True
                for text that the operator or a raw prompt controls; False makes them plain text.
            affixes: Whether to add `prefix_ids` and `suffix_ids`.
        """
        rules = self._rules if special else self._plain_rules
        ids: list[int] = rules.encode(text, add_special_tokens=False).ids
        return [*self.prefix_ids, *ids, *self.suffix_ids] if affixes else ids

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode with control tokens and without affixes; also tell where each id comes from.

        Returns:
            The ids, and for each the first and one past the last character of its text.
        """
        encoding = self._rules.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of ids; bytes that are no UTF-8 become U+FFFD.

        The ids are read as the continuation of a text: a leading space is kept.
        """
        kept = (id for id in ids if not (skip_special and id in self._special))
        return b"".join(map(self.token_bytes, kept)).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """Return what an id adds to a text; empty for ids beyond the vocabulary."""
        known = self._bytes.get(id)
        if known is None:
            known = self._bytes[id] = self._read_bytes(id)
        return known

    def is_special(self, id: int) -> bool:
        """Whether an id is a control token, which is no part of the answer's text."""
        return id in self._special

    def literal(self, id: int) -> str | None:
        """Return how the vocabulary writes an id, or None when it has no such id."""
        return self._rules.id_to_token(id) if id >= 0 else None

    def id_of(self, literal: str) -> int | None:
        """Return the id that the vocabulary writes so, or None."""
        return self._rules.token_to_id(literal)

    def _read_bytes(self, id: int) -> bytes:
        if id in self._added:
            return self._added[id]
        piece = self.literal(id)
        if piece is None:
            return b""
        if self._continues is not None:  # the vocabulary has no spaces: words begin with one
            inner = piece.removeprefix(self._continues)
            return (inner if inner != piece else f" {piece}").encode()
        if self._space is None:
            return b"".join(
                bytes((BYTE_OF[character],)) if character in BYTE_OF else character.encode()
                for character in piece
            )
        raw = _BYTE_PIECE.fullmatch(piece)
        return bytes((int(raw[1], 16),)) if raw else piece.replace(self._space, " ").encode()


def _without_control_tokens(
    rules: tokenizers.Tokenizer, added: Mapping[int, tokenizers.AddedToken]
) -> tokenizers.Tokenizer:
    """Make the twin that reads control-token literals as plain text; the vocabulary is shared.

    The library has a switch for this, but on the object: flipping it for each call would race.
    """
    twin = tokenizers.Tokenizer(rules.model)
    if rules.normalizer is not None:
        twin.normalizer = rules.normalizer
    if rules.pre_tokenizer is not None:
        twin.pre_tokenizer = rules.pre_tokenizer
    in_order = [token for _, token in sorted(added.items())]
    for token in in_order:
        if token.special:
            twin.add_special_tokens([token])
        else:
            twin.add_tokens([token])
    if {i: t.content for i, t in twin.get_added_tokens_decoder().items()} != {
        i: t.content for i, t in added.items()
    }:
        # Ids with gaps come out shifted above; a full copy is slower but exact.
        twin = tokenizers.Tokenizer.from_str(rules.to_str())
    twin.encode_special_tokens = True
    return twin


def _space_of(state: dict[str, Any], where: str) -> str | None:
    """Return the character that stands for a space in pieces, or None for a byte-level alphabet."""
    steps: list[dict[str, Any]] = state.get("decoders", [state])
    kinds = [str(step.get("type")) for step in steps]
    if "ByteLevel" in kinds:
        return None
    for step in steps:
        if step.get("type") == "Metaspace":
            return str(step["replacement"])
        if step.get("type") == "Replace" and step.get("content") == " ":
            return str(step["pattern"]["String"])
    raise CheckpointError(
        f"{where}: the decoder {' + '.join(kinds)} is not supported; byte-level ones, those "
        "with a character for the space and WordPiece are."
    )
