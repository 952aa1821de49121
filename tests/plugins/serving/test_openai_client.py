"""The official client against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest


@pytest.fixture(scope="module")
def client(server) -> Iterator[Any]:  # its types leave everything optional
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


MESSAGES = [{"role": "user", "content": "Hi"}]


def test_chat(client: Any) -> None:
    answer = client.chat.completions.create(model="toy", messages=MESSAGES, max_tokens=5, n=2)
    assert [len(one.message.content) for one in answer.choices] == [5, 5]
    assert answer.usage.completion_tokens == 10
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_STR_06_a_streamed_chat_with_usage(client: Any) -> None:
    stream = client.chat.completions.create(
        model="toy",
        messages=MESSAGES,
        max_tokens=5,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    text: str = ""
    usage: Any = None
    for chunk in stream:
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    assert (len(text), usage.completion_tokens) == (5, 5)


def test_completions_with_logprobs(client: Any) -> None:
    answer = client.completions.create(model="toy", prompt="echo abc", logprobs=2)
    assert answer.choices[0].logprobs.tokens == ["a", "b", "c", "<|im_end|>"]
    stream = client.completions.create(model="toy", prompt="echo abc", stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "abc"


def test_chat_with_logprobs(client: Any) -> None:
    answer = client.chat.completions.create(
        model="toy", messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=3
    )
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 3


def test_API_01_models(client: Any) -> None:
    assert [one.id for one in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").owned_by == "camshaft"


def test_API_01_errors_are_of_the_right_class(client: Any) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="other", input="a")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="toy", messages=MESSAGES, temperature=9)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="toy", messages=[])
    assert caught.value.param == "messages"


def test_STR_08_an_error_in_a_stream_is_raised(client: Any) -> None:
    stream = client.completions.create(model="toy", prompt="BOOM", stream=True)
    with pytest.raises(openai.APIError, match="the sampler failed"):
        for _ in stream:
            pass
