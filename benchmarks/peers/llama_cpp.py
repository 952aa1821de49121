"""llama.cpp as a worker, through the low-level interface of llama-cpp-python."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

from .protocol import Answer, Question, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

ATTENTION = {
    "off": llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED,
    "on": llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED,
}


class Batch:
    """Tokens for one call, in memory that is filled anew each time."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._batch = llama_cpp.llama_batch_init(capacity, 0, 1)

    def fill(self, rows: Sequence[tuple[int, int, int, bool]]) -> Any:  # noqa: ANN401
        """Return the batch with some rows of (token, position, sequence, whether logits)."""
        batch = self._batch
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at] = token
            batch.pos[at] = position
            batch.n_seq_id[at] = 1
            batch.seq_id[at][0] = sequence
            batch.logits[at] = wanted
        batch.n_tokens = len(rows)
        return batch


class LlamaCpp:
    """A model, and a context that fits the last question."""

    def __init__(self, model: str, *, threads: int, attention: str, unified: bool) -> None:
        llama_cpp.llama_backend_init()
        parameters = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._vocab = int(llama_cpp.llama_vocab_n_tokens(vocab))
        self._threads, self._attention, self._unified = threads, attention, unified
        self._batch = Batch(int(llama_cpp.llama_context_default_params().n_batch))
        self._context: Any = None
        self._shape = (0, 0)

    def generate(self, question: Question) -> Answer:
        """See `protocol.Engine`. Prompts go in as large batches, then a token of each at a time."""
        prompts = question.prompts
        self._fit(len(prompts), max(map(len, prompts)) + question.outputs)
        start = time.perf_counter()
        last = self._read(prompts)
        first_s = time.perf_counter() - start
        found = [[token] for token in last]
        for step in range(question.outputs - 1):
            rows = [
                (ids[-1], len(prompt) + step, sequence, True)
                for sequence, (ids, prompt) in enumerate(zip(found, prompts, strict=True))
            ]
            for ids, token in zip(found, self._decode(rows), strict=True):
                ids.append(token)
        return Answer(first_s, time.perf_counter() - start, found)

    def _fit(self, streams: int, tokens: int) -> None:
        """Keep the context, emptied, or make another one for `streams` of so many tokens."""
        shape = (streams, -(-tokens // 256) * 256)
        if shape != self._shape:
            if self._context is not None:
                llama_cpp.llama_free(self._context)
            self._context = self._open(*shape)
            self._shape = shape
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def _open(self, streams: int, tokens: int) -> Any:  # noqa: ANN401
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = streams * tokens
        parameters.n_seq_max = streams
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.flash_attn_type = ATTENTION[self._attention]
        parameters.kv_unified = self._unified
        context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not context:
            raise RuntimeError(f"llama.cpp makes no context of {streams} x {tokens} tokens")
        return context

    def _read(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """Read all prompts; return the token that follows each."""
        rows = [
            (token, position, sequence, position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        size = self._batch.capacity
        return [
            token
            for begin in range(0, len(rows), size)
            for token in self._decode(rows[begin : begin + size])
        ]

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> list[int]:
        """Run some rows; return the likeliest token after each that wants one."""
        status = llama_cpp.llama_decode(self._context, self._batch.fill(rows))
        if status:
            raise RuntimeError(f"llama_decode answered {status}")
        return [self._likeliest(at) for at, row in enumerate(rows) if row[3]]

    def _likeliest(self, at: int) -> int:
        logits = llama_cpp.llama_get_logits_ith(self._context, at)
        return int(np.ctypeslib.as_array(logits, shape=(self._vocab,)).argmax())


def main() -> None:
    """Serve a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--attention", choices=ATTENTION, default="off", help="flash attention")
    parser.add_argument("--unified", action="store_true", help="one cache for all sequences")
    arguments = parser.parse_args()
    engine = LlamaCpp(
        arguments.model,
        threads=arguments.threads,
        attention=arguments.attention,
        unified=arguments.unified,
    )
    serve(engine, ("llama-cpp-python",))


if __name__ == "__main__":
    main()
