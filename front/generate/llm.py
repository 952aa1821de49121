"""The Python API: an engine in this process, by recipe."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from camshaft.client import EngineDiedError, LocalClient, build_engine, load_text_of
from camshaft.recipe import Recipe, open_recipe
from camshaft.request import EVERYWHERE, CacheScope, Pooling, SamplingParams

from . import (
    Beams,
    Call,
    Choice,
    Generation,
    Prompter,
    Usage,
    check_beams,
    check_name,
    check_params,
    check_scope,
    pooled,
    split_prompts,
    unit,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence

    from camshaft.client import EngineClient
    from camshaft.client.loop import SteppedEngine
    from camshaft.executor.trace_files import TraceOrder
    from camshaft.info import EngineInfo
    from camshaft.text import TextModel

    from . import Delta

T = TypeVar("T")

DEFAULT_MAX_TOKENS = 16
"""Of `generate`, as of /v1/completions. `chat` fills the context."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to one prompt.

    Attributes:
        prompt_ids: As the engine saw it.
        choices: `n` of them.
        usage: Tokens.
    """

    prompt_ids: list[int]
    choices: list[Choice]
    usage: Usage

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """Of the first choice."""
        return self.choices[0].token_ids


class _Cached(NamedTuple):
    """With whom cached pages are shared."""

    salt: str
    scope: CacheScope


class LLM:
    """A model that answers, from a recipe.

        with camshaft.LLM("recipes/quickstart.yaml") as llm:
            print(llm.chat([{"role": "user", "content": "What is a camshaft?"}]).text)

    The engine runs on a thread of its own. Every method may be called from any thread; those that
    start with `a` from any event loop.
    """

    def __init__(
        self,
        recipe: str | Path | Recipe,
        overrides: Iterable[str] = (),
        *,
        progress: Callable[[str], None] = lambda _: None,
        trace: TraceOrder | None = None,
    ) -> None:
        """Compose the engine and load the weights.

        Args:
            recipe: A YAML file, or one that was read.
            overrides: Changes to the file, as `--set` takes them.
            progress: Is told what happens, in a few words.
            trace: A step to keep for a report of a fault; see `engine trace`.

        Raises:
            RecipeError: The recipe does not compose.
            CheckpointError: Weights or tokenizer are missing or damaged.
        """
        opened = recipe if isinstance(recipe, Recipe) else open_recipe(recipe, overrides)
        text = load_text_of(opened)
        failures: list[Exception] = []

        def build() -> tuple[SteppedEngine, EngineInfo]:
            try:
                return build_engine(opened, progress, trace)
            except Exception as error:
                failures.append(error)
                raise

        try:
            self._set_up(LocalClient(build), text)
        except EngineDiedError:
            raise failures[0] from None  # of its own class: it happened in this process

    @classmethod
    def on(cls, client: EngineClient, text: TextModel) -> LLM:
        """Make one on a client that is there already; closing it closes the client."""
        llm = cls.__new__(cls)
        llm._set_up(client, text)
        return llm

    def _set_up(self, client: EngineClient, text: TextModel) -> None:
        self._client = client
        self._text = text
        self.info: EngineInfo = client.wait_ready()
        self._prompter = Prompter(text, self.info)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="camshaft-llm", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        n: int = 1,
        *,
        beams: Beams | None = None,
        salt: str = "",
        scope: CacheScope = EVERYWHERE,
    ) -> list[Answers]:
        """Continue prompts.

        Args:
            prompts: A text, token ids, or a list of either.
            params: How tokens are chosen; 16 tokens at most by default.
            n: Answers to each prompt.
            beams: The answers are the `n` best that a beam search finds.
            salt: Cached pages are shared only under the same one.
            scope: And only in the same namespace and version; see there.

        Returns:
            One entry a prompt, in order.

        Raises:
            RequestError: Names what is wrong with prompts or parameters.
        """
        cached = _Cached(salt, scope)
        return self._wait(self._generate(prompts, params, n, cached, beams))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        n: int = 1,
        *,
        salt: str = "",
        scope: CacheScope = EVERYWHERE,
    ) -> Answers:
        """Answer a conversation, by the model's chat template.

        Args:
            messages: Such as `[{"role": "user", "content": "Hello"}]`.
            params: How tokens are chosen; up to the end of the context by default.
            n: Answers.
            salt: As for `generate`.
            scope: As for `generate`.

        Raises:
            RequestError: Names what is wrong with messages or parameters.
        """
        return self._wait(self._chat(messages, params, n, _Cached(salt, scope)))

    def embed(
        self,
        texts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        pooling: Pooling | None = None,
        *,
        normalize: bool = True,
        salt: str = "",
    ) -> list[list[float]]:
        """Make vectors of texts.

        Args:
            texts: A text, token ids, or a list of either.
            pooling: Which tokens make a vector; by default what the model was made for.
            normalize: Give them length 1 (L2).
            salt: As for `generate`.

        Returns:
            One vector a text, in order.

        Raises:
            RequestError: Names what is wrong with the texts.
        """
        found = self._wait(self._embed(texts, pooling, _Cached(salt, EVERYWHERE)))
        return [unit(one).tolist() for one in found] if normalize else found

    async def agenerate(
        self,
        prompt: str | list[int],
        params: SamplingParams | None = None,
        n: int = 1,
        *,
        salt: str = "",
        scope: CacheScope = EVERYWHERE,
    ) -> AsyncGenerator[Delta]:
        """Continue one prompt and yield what every step adds. Stopping early ends the request."""
        [only] = split_prompts(prompt)
        ids = await self._prompter.encode(only)
        generation = self._generation([ids], params, n, _Cached(salt, scope))
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def achat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        n: int = 1,
        *,
        salt: str = "",
        scope: CacheScope = EVERYWHERE,
    ) -> AsyncGenerator[Delta]:
        """Answer a conversation and yield what every step adds."""
        ids = await self._prompter.render(messages)
        generation = self._generation([ids], params or self._filling(ids), n, _Cached(salt, scope))
        async with aclosing(generation.deltas()) as deltas:
            async for delta in deltas:
                yield delta

    def close(self) -> None:
        """Stop the engine and release its memory."""
        self._client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _generate(
        self,
        prompts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        params: SamplingParams | None,
        n: int,
        cached: _Cached,
        beams: Beams | None,
    ) -> list[Answers]:
        encoded = await self._prompter.encode_all(split_prompts(prompts))
        generation = self._generation(encoded, params, n, cached, beams)
        choices = await generation.choices()
        return [
            Answers(ids, choices[place * n : (place + 1) * n], generation.usages[place])
            for place, ids in enumerate(encoded)
        ]

    async def _chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None,
        n: int,
        cached: _Cached,
    ) -> Answers:
        ids = await self._prompter.render(messages)
        generation = self._generation([ids], params or self._filling(ids), n, cached)
        return Answers(ids, await generation.choices(), generation.usage)

    async def _embed(
        self,
        texts: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]],
        pooling: Pooling | None,
        cached: _Cached,
    ) -> list[list[float]]:
        params = pooled(pooling, self._text, self.info)
        encoded = await self._prompter.encode_all(split_prompts(texts, "texts"), answer=0)
        choices = await self._generation(encoded, params, 1, cached).choices()
        return [one.embedding for one in choices]

    def _generation(
        self,
        prompts: list[list[int]],
        params: SamplingParams | None,
        n: int,
        cached: _Cached,
        beams: Beams | None = None,
    ) -> Generation:
        params = params or SamplingParams(max_tokens=DEFAULT_MAX_TOKENS)
        check_params(params, self.info.vocab)
        if beams is not None:
            check_beams(beams, params, n)
        check_name("salt", cached.salt)
        check_scope(cached.scope)
        call = Call(
            prompts=prompts, params=params, n=n, salt=cached.salt, scope=cached.scope, beams=beams
        )
        return Generation(self._client, self._text.tokenizer, call)

    def _filling(self, prompt: list[int]) -> SamplingParams:
        return SamplingParams(max_tokens=self.info.room - len(prompt))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C: the request must not go on alone
            raise
