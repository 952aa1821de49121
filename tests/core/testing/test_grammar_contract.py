from __future__ import annotations

import json

import llguidance
import numpy as np
import pytest

from camshaft.contracts.grammar import GrammarEngine, GrammarSpec, GrammarState
from camshaft.errors import RequestError
from camshaft.testing.grammar import GrammarEngineContract
from camshaft.testing.rejects import failures


class State(GrammarState):
    def __init__(self, matcher, vocab):
        self.matcher, self.vocab = matcher, vocab

    def fill_mask(self, mask, row):
        target = mask[row]
        self.matcher.unsafe_compute_mask_ptr(target.ctypes.data, target.nbytes)

    def accept(self, tokens):
        done = self.matcher.try_consume_tokens(list(tokens))
        if done < len(tokens):
            self.matcher.rollback(done)
        return done == len(tokens)

    def rollback(self, tokens):
        self.matcher.rollback(tokens)

    def terminated(self):
        return self.matcher.is_stopped()


class Guidance(GrammarEngine):
    """A thin shell around a library that does all of this."""

    state = State

    def __init__(self, token_bytes, eos_ids):
        self.vocab = len(token_bytes)
        self.tokens = [one or f"<{id}>".encode() for id, one in enumerate(token_bytes)]
        self.special_token_ids = [id for id, one in enumerate(token_bytes) if not one]
        self.eos_token_id, self.bos_token_id = min(eos_ids), None
        self.tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(self), n_vocab=self.vocab, eos_token=sorted(eos_ids)
        )

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)

    def compile(self, spec: GrammarSpec) -> GrammarState:
        try:
            grammar = self.translate(spec)
        except ValueError as error:
            raise RequestError(str(error)) from error
        matcher = llguidance.LLMatcher(self.tokenizer, grammar)
        if matcher.is_error():
            raise RequestError(matcher.get_error())
        return self.state(matcher, self.vocab)

    def translate(self, spec: GrammarSpec) -> str:
        library = llguidance.LLMatcher
        if spec.kind == "regex":
            return library.grammar_from_regex(spec.text)
        if spec.kind == "lark":
            return library.grammar_from_lark(spec.text)
        if spec.kind == "choice":
            texts = json.loads(spec.text)
            if not texts:
                raise ValueError("a choice needs at least one text")
            return library.grammar_from_lark(f"start: {' | '.join(map(json.dumps, texts))}")
        schema = {"type": "object"} if spec.kind == "json_object" else json.loads(spec.text)
        return library.grammar_from_json_schema(schema)


def verdict(engine: type[Guidance], only: tuple[str, ...] = (), **attributes) -> list[str]:
    class Contract(GrammarEngineContract):
        def make(self, token_bytes, eos_ids) -> GrammarEngine:
            return engine(token_bytes, eos_ids)

    for name, value in attributes.items():
        setattr(Contract, name, value)
    return failures(Contract, only=only)


def test_a_good_engine_passes() -> None:
    assert verdict(Guidance) == []


class RegexOnly(Guidance):
    def translate(self, spec):
        if spec.kind != "regex":
            raise ValueError(f"{spec.kind} is not supported; regex is")
        return super().translate(spec)


def test_an_engine_may_offer_one_kind_alone() -> None:
    assert verdict(RegexOnly, kinds=("regex",)) == []
    assert "test_a_lark_grammar_nests" in verdict(RegexOnly)


def test_a_kind_that_is_enforced_but_not_offered_is_noticed() -> None:
    assert verdict(Guidance, kinds=("regex",)) == [
        "test_a_kind_that_is_not_offered_is_refused_by_name"
    ]


def broken(**methods) -> type[Guidance]:
    """Return an engine whose states have these methods instead."""
    return type("Broken", (Guidance,), {"state": type("BrokenState", (State,), methods)})


def adds_bits(self, mask, row):
    before = mask[row].copy()
    State.fill_mask(self, mask, row)
    mask[row] |= before


def first_row(self, mask, row):
    State.fill_mask(self, mask, 0)


def all_rows(self, mask, row):
    State.fill_mask(self, mask, row)
    mask[:] = mask[row]


def highest_bit_first(self, mask, row):
    State.fill_mask(self, mask, row)
    bits = np.unpackbits(mask[row].view(np.uint8), bitorder="big")
    mask[row] = np.packbits(bits, bitorder="little").view(np.int32)


def whole_words(self, mask, row):
    """Allows what lies between the vocabulary and the end of its last word."""
    State.fill_mask(self, mask, row)
    mask[row, -1] |= -1 << (self.vocab % 32)


def end_at_any_time(self, mask, row):
    State.fill_mask(self, mask, row)
    mask[row, 261 // 32] |= 1 << (261 % 32)


def one_end(self, mask, row):
    State.fill_mask(self, mask, row)
    mask[row, 263 // 32] &= ~(1 << (263 % 32))


def control_tokens(self, mask, row):
    State.fill_mask(self, mask, row)
    mask[row, 260 // 32] |= 1 << (260 % 32)


def single_bytes(self, mask, row):
    State.fill_mask(self, mask, row)
    mask[row, 8] &= -16


def accepts_a_part(self, tokens):
    return self.matcher.try_consume_tokens(list(tokens)) == len(tokens)


def must_end(self):
    return self.matcher.is_accepting()


def never(self):
    return False


def rolls_back_one(self, tokens):
    self.matcher.rollback(min(1, tokens))


def starts_over(self, tokens):
    self.matcher.reset()


class Shared(Guidance):
    """Remembers states, not grammars."""

    def __init__(self, token_bytes, eos_ids):
        super().__init__(token_bytes, eos_ids)
        self.known = {}

    def compile(self, spec):
        if spec not in self.known:
            self.known[spec] = super().compile(spec)
        return self.known[spec]


class Lenient(Guidance):
    """Drops the keywords that it does not know."""

    def translate(self, spec):
        if spec.kind == "json_schema":
            schema = json.loads(spec.text)
            schema = {key: one for key, one in schema.items() if key not in {"uniqueItems", "not"}}
            spec = GrammarSpec("json_schema", json.dumps(schema))
        return super().translate(spec)


class OwnErrors(Guidance):
    def compile(self, spec):
        try:
            return super().compile(spec)
        except RequestError as error:
            raise ValueError(str(error)) from error


class Prefix(Guidance):
    """A choice begins with one of its texts."""

    def translate(self, spec):
        if spec.kind == "choice":
            texts = [text[:2] for text in json.loads(spec.text)]
            return llguidance.LLMatcher.grammar_from_regex(f"({'|'.join(texts)}).*")
        return super().translate(spec)


@pytest.mark.parametrize(
    ("engine", "test"),
    [
        (broken(fill_mask=adds_bits), "test_a_mask_is_written_to_its_row_alone"),
        (broken(fill_mask=first_row), "test_a_mask_is_written_to_its_row_alone"),
        (broken(fill_mask=all_rows), "test_a_mask_is_written_to_its_row_alone"),
        (broken(fill_mask=highest_bit_first), "test_only_what_fits_is_allowed"),
        (broken(fill_mask=whole_words), "test_ids_that_are_no_text_are_never_allowed"),
        (broken(fill_mask=control_tokens), "test_ids_that_are_no_text_are_never_allowed"),
        (broken(fill_mask=end_at_any_time), "test_the_end_is_illegal_until_it_may_end"),
        (broken(fill_mask=one_end), "test_the_end_is_illegal_until_it_may_end"),
        (broken(fill_mask=end_at_any_time), "test_what_the_mask_allows_is_accepted"),
        (
            broken(fill_mask=single_bytes),
            "test_tokens_of_several_bytes_are_allowed_where_they_fit",
        ),
        (broken(accept=accepts_a_part), "test_what_does_not_fit_is_refused_and_changes_nothing"),
        (broken(terminated=must_end), "test_may_end_is_not_must_end"),
        (broken(terminated=never), "test_a_complete_format_allows_nothing_but_the_end"),
        (broken(rollback=rolls_back_one), "test_rollback_leads_back"),
        (broken(rollback=starts_over), "test_rollback_leads_back"),
        (Shared, "test_requests_with_the_same_format_do_not_share_a_state"),
        (Lenient, "test_a_schema_is_enforced_in_full_or_refused"),
        (OwnErrors, "test_a_format_that_is_wrong_is_refused"),
        (Prefix, "test_a_choice_is_one_of_its_texts"),
    ],
)
def test_an_engine_that_breaks_a_promise_is_rejected(engine: type[Guidance], test: str) -> None:
    assert verdict(engine, only=(test,)) == [test]
