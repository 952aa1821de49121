"""The contract of grammar engines, as tests to inherit."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ..contracts.grammar import GrammarSpec
from ..errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ..contracts.grammar import GrammarEngine, GrammarState

AB, BC, CONTROL, EOS, PADDING = 256, 257, 260, (261, 263), (262, 264, 265)
TOKEN_BYTES: list[bytes] = [
    *(bytes((one,)) for one in range(256)),
    b"ab",
    b"bc",
    b'{"',
    b'":',
    *[b""] * 6,
]
"""Every byte, some longer tokens, and ids that are no text: a control token, two ends, padding."""

WORDS = -(-len(TOKEN_BYTES) // 32)

MISFITS = [
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}, [1, 1]),
    ({"type": "integer", "not": {"enum": [7]}}, 7),
    ({"type": "string", "pattern": "^a+$"}, "b"),
    ({"type": "integer", "minimum": 3, "maximum": 12}, 13),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True]),
    ({"allOf": [{"type": "integer"}, {"enum": [1, "a"]}]}, "a"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, {"a": 1}),
    ({"type": "object", "additionalProperties": False}, {"a": 1}),
]
"""A schema, and what it forbids."""

FITS = [
    ({"type": "boolean"}, True),
    ({"enum": ["yes", "no"]}, "no"),
    ({"type": "array", "items": {"type": "integer"}}, [1, 20, 300]),
    (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"a": 5},
    ),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"a": None}),
]
"""A schema, and what it allows."""


class GrammarEngineContract:
    """Subclass it, define `make`, and run pytest.

    Attributes:
        kinds: Of `GrammarSpec` that the engine enforces; it must refuse the others by name.
    """

    kinds: tuple[str, ...] = ("json_schema", "json_object", "regex", "lark", "choice")

    def make(self, token_bytes: Sequence[bytes], eos_ids: frozenset[int]) -> GrammarEngine:
        """Return the engine under test; an id without bytes is no text."""
        raise NotImplementedError

    def engine(self) -> GrammarEngine:
        """Return an engine for the vocabulary of these tests."""
        return self.make(TOKEN_BYTES, frozenset(EOS))

    def compiled(self, kind: str, text: str) -> GrammarState:
        """Return a fresh state, or leave the test out if the engine has not this kind."""
        if kind not in self.kinds:
            pytest.skip(f"{kind} is not offered")
        return self.engine().compile(GrammarSpec(kind, text))  # type: ignore[arg-type]

    def test_only_what_fits_is_allowed(self) -> None:
        """Token by token, and all of a token's bytes must fit."""
        state = self.compiled("regex", "[ab]c")
        assert first_bytes(allowed(state)) == b"ab"
        assert AB not in allowed(state)
        assert state.accept([ord("a")])
        assert first_bytes(allowed(state)) == b"c"

    def test_tokens_of_several_bytes_are_allowed_where_they_fit(self) -> None:
        """And lead where their bytes lead one by one."""
        whole, parts = self.compiled("regex", "(ab|bc)+"), self.compiled("regex", "(ab|bc)+")
        assert {AB, BC} <= allowed(whole)
        assert whole.accept([BC])
        assert parts.accept([ord("b"), ord("c")])
        assert allowed(whole) == allowed(parts)

    def test_the_end_is_illegal_until_it_may_end(self) -> None:
        """And then every end of the model is legal."""
        state = self.compiled("regex", "a(bc)?")
        assert not allowed(state) & set(EOS)
        assert state.accept([ord("a")])
        assert allowed(state) >= set(EOS)
        assert state.accept([ord("b")])
        assert not allowed(state) & set(EOS)

    def test_may_end_is_not_must_end(self) -> None:
        """A format that may go on is not terminated, and what goes on is allowed."""
        state = self.compiled("regex", "a+")
        assert not state.terminated()
        assert state.accept([ord("a")])
        assert not state.terminated()
        assert allowed(state) == {ord("a"), *EOS}

    def test_a_complete_format_allows_nothing_but_the_end(self) -> None:
        """It is terminated then."""
        state = self.compiled("regex", "ac")
        assert state.accept(list(b"ac"))
        assert state.terminated()
        assert allowed(state) == set(EOS)
        assert not state.accept([ord("a")])
        assert state.terminated()

    def test_a_mask_is_written_to_its_row_alone(self) -> None:
        """All of the row, whatever it held; one bit an id, the lowest first; the rest untouched."""
        state = self.compiled("regex", "[ab]c")
        for before in (0, -1, 0x5A5A5A5A):
            mask = np.full((3, WORDS), before, dtype=np.int32)
            state.fill_mask(mask, 1)
            assert (mask[[0, 2]] == before).all()
            assert ids_of(mask[1]) == allowed(state)

    def test_ids_that_are_no_text_are_never_allowed(self) -> None:
        """Control tokens, padding, and bits beyond the vocabulary, however free the format is."""
        state = self.compiled("regex", r"(.|\n)*")
        assert {ord("x"), *EOS} <= allowed(state)
        assert not allowed(state) & {CONTROL, *PADDING}
        assert max(allowed(state)) < len(TOKEN_BYTES)
        assert not state.accept([CONTROL])

    @pytest.mark.parametrize("start", ["", "a", "abbca"])
    def test_what_the_mask_allows_is_accepted(self, start: str) -> None:
        """Each of the ids, the ends included."""
        state = self.compiled("regex", "(ab|bc?a)*")
        assert state.accept(list(start.encode()))
        before = allowed(state)
        for token in sorted(before):
            assert state.accept([token]), token
            state.rollback(1)
            assert allowed(state) == before, token

    def test_what_does_not_fit_is_refused_and_changes_nothing(self) -> None:
        """Not even by the tokens before the one that does not fit."""
        state = self.compiled("regex", "abc*d")
        assert state.accept([ord("a")])
        before = allowed(state)
        for tokens in ([ord("a")], [ord("b"), ord("c"), ord("x")], [AB], [EOS[0]], [CONTROL]):
            assert not state.accept(tokens), tokens
            assert allowed(state) == before
        assert state.accept(list(b"bcd"))
        assert state.terminated()

    def test_rollback_leads_back(self) -> None:
        """By any number of tokens, from any place, also from the end."""
        state = self.compiled("regex", "a(b|bc)*d")
        tokens = [ord("a"), ord("b"), BC, ord("b"), ord("c"), ord("d")]
        seen = [allowed(state)]
        for token in tokens:
            assert state.accept([token])
            seen.append(allowed(state))
        chance, place = random.Random(0), len(tokens)
        for _ in range(30):
            back = chance.randint(0, place)
            state.rollback(back)
            place -= back
            assert allowed(state) == seen[place]
            assert state.terminated() == (place == len(tokens))
            ahead = chance.randint(place, len(tokens))
            assert state.accept(tokens[place:ahead])
            place = ahead

    def test_requests_with_the_same_format_do_not_share_a_state(self) -> None:
        """Even from the same engine, which may remember what it compiled."""
        if "regex" not in self.kinds:
            pytest.skip("regex is not offered")
        engine = self.engine()
        one, other = (engine.compile(GrammarSpec("regex", "ac")) for _ in range(2))
        assert one.accept([ord("a")])
        assert first_bytes(allowed(other)) == b"a"

    def test_formats_are_compiled_in_threads(self) -> None:
        """Several at once, and their states are then used by the engine's thread."""
        engine, formats = self.engine(), ["a+", "b?c", "[ab]{3}", "(ab)*"] * 4
        if "regex" not in self.kinds:
            pytest.skip("regex is not offered")
        with ThreadPoolExecutor(4) as threads:
            states = list(
                threads.map(lambda one: engine.compile(GrammarSpec("regex", one)), formats)
            )
        for format, state in zip(formats, states, strict=True):
            assert allowed(state) == allowed(self.compiled("regex", format))

    def test_a_choice_is_one_of_its_texts(self) -> None:
        """Nothing less and nothing more."""
        texts = ["yes", "no", "no, thanks"]
        for text in texts:
            state = self.compiled("choice", json.dumps(texts))
            assert state.accept(list(text.encode()))
            assert allowed(state) >= set(EOS)
        state = self.compiled("choice", json.dumps(texts))
        assert first_bytes(allowed(state)) == b"ny"
        assert not state.accept(list(b"none"))

    def test_a_lark_grammar_nests(self) -> None:
        """What no regular expression can do."""
        state = self.compiled("lark", 'start: "a" | "(" start ")"')
        assert state.accept(list(b"((a)"))
        assert first_bytes(allowed(state)) == b")"
        assert state.accept([ord(")")])
        assert state.terminated()

    def test_any_json_is_an_object(self) -> None:
        """Whatever is in it."""
        text = json.dumps({"a": [1, {"b": None}], "ü": "x"}, ensure_ascii=False)
        state = self.compiled("json_object", "")
        assert first_bytes(allowed(state)).strip() == b"{"
        assert state.accept(list(text.encode()))
        assert allowed(state) >= set(EOS)

    @pytest.mark.parametrize("case", range(len(FITS)))
    def test_what_fits_a_schema_can_be_written(self, case: int) -> None:
        """In one of the usual ways of spacing."""
        schema, value = FITS[case]
        texts = [json.dumps(value), json.dumps(value, separators=(",", ":"))]
        assert any(self._writes(schema, text) for text in texts)

    @pytest.mark.parametrize("case", range(len(MISFITS)))
    def test_a_schema_is_enforced_in_full_or_refused(self, case: int) -> None:
        """Silently dropping a part of it would be the worst."""
        schema, value = MISFITS[case]
        for text in (json.dumps(value), json.dumps(value, separators=(",", ":"))):
            try:
                assert not self._writes(schema, text), f"{schema} allows {text}"
            except RequestError as refusal:
                assert str(refusal)  # noqa: PT017 - either way is right

    @pytest.mark.parametrize(
        ("kind", "text"),
        [("regex", "(a"), ("json_schema", "{not json"), ("lark", "start: ("), ("choice", "[]")],
    )
    def test_a_format_that_is_wrong_is_refused(self, kind: str, text: str) -> None:
        """As the client's error, in words; a kind that is not offered is such an error too."""
        with pytest.raises(RequestError) as refused:
            self.engine().compile(GrammarSpec(kind, text))  # type: ignore[arg-type]
        assert refused.value.status == 400
        assert str(refused.value)

    def test_a_kind_that_is_not_offered_is_refused_by_name(self) -> None:
        """So that the client knows that no other text would help."""
        good = {"regex": "a", "lark": 'start: "a"', "choice": '["a"]', "json_schema": "{}"}
        for kind in {*good, "json_object"} - set(self.kinds):
            with pytest.raises(RequestError, match=kind):
                self.engine().compile(GrammarSpec(kind, good.get(kind, "")))  # type: ignore[arg-type]

    def _writes(self, schema: object, text: str) -> bool:
        state = self.compiled("json_schema", json.dumps(schema))
        return state.accept(list(text.encode())) and bool(allowed(state) & set(EOS))


def allowed(state: GrammarState) -> set[int]:
    """Return the ids whose bits a state sets."""
    mask = np.zeros((1, WORDS), dtype=np.int32)
    state.fill_mask(mask, 0)
    return ids_of(mask[0])


def ids_of(row: NDArray[np.int32]) -> set[int]:
    """Return the ids whose bits are set in a row of a mask."""
    return set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())


def first_bytes(ids: Iterable[int]) -> bytes:
    """Return the bytes that may come next, sorted: an engine may prefer some cuts of a text."""
    return bytes(sorted({TOKEN_BYTES[token][0] for token in ids if TOKEN_BYTES[token]}))
