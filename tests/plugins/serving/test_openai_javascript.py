"""OpenAI's clients in Python and in JavaScript run the same script and see the same.

The second needs `npm install --prefix FOLDER openai`, and `OPENAI_JS=FOLDER`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

SCRIPT = Path(__file__).with_name("openai_client.cjs")
MESSAGES = [{"role": "user", "content": "Hi"}]
EXPECTED_ERRORS = [
    ["NotFoundError", 404],
    ["BadRequestError", 400],
    ["BadRequestError", 400],
    ["BadRequestError", 400],
    ["APIError", None],
]


def failure(work: Callable[[], Any]) -> list[Any] | None:
    try:
        for _ in work():
            pass
    except openai.APIError as error:
        return [type(error).__name__, getattr(error, "status_code", None)]
    return None


def in_python(url: str) -> dict[str, Any]:
    client: Any = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    chat, completions, model = client.chat.completions, client.completions, "toy"
    whole = chat.create(model=model, messages=MESSAGES, max_tokens=5, n=2)
    text, usage = "", None
    for chunk in chat.create(
        model=model,
        messages=MESSAGES,
        max_tokens=5,
        extra_body={"ignore_eos": True},
        stream=True,
        stream_options={"include_usage": True},
    ):
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
        usage = chunk.usage or usage
    plain = completions.create(model=model, prompt="echo abc", logprobs=2)
    vectors = client.embeddings.create(model=model, input="abc")
    assert usage is not None
    bad: list[Callable[[], Any]] = [
        lambda: chat.create(model="other", messages=MESSAGES),
        lambda: chat.create(model=model, messages=MESSAGES, temperature=9),
        lambda: chat.create(model=model, messages=[]),
        lambda: client.embeddings.create(model=model, input="a", dimensions=4),
        lambda: completions.create(model=model, prompt="BOOM", stream=True),
    ]
    with client:
        return {
            "models": [one.id for one in client.models.list()],
            "whole": [one.message.content for one in whole.choices],
            "finish": [one.finish_reason for one in whole.choices],
            "used": whole.usage.completion_tokens,
            "streamed": text,
            "stream_used": usage.completion_tokens,
            "tokens": plain.choices[0].logprobs.tokens,
            "vector": vectors.data[0].embedding,
            "errors": [failure(work) for work in bad],
        }


def test_the_script_sees_what_it_should(serve) -> None:
    found = in_python(serve().url)
    assert (found["models"], found["used"], found["stream_used"]) == (["toy"], 10, 5)
    assert [len(one) for one in (*found["whole"], found["streamed"])] == [5, 5, 5]
    assert found["tokens"] == ["a", "b", "c", "<|im_end|>"]
    assert sum(one * one for one in found["vector"]) == pytest.approx(1)
    assert found["errors"] == EXPECTED_ERRORS


def test_both_clients_see_the_same(serve) -> None:
    node, folder = shutil.which("node"), os.environ.get("OPENAI_JS", "")
    if node is None or not (Path(folder) / "node_modules" / "openai").is_dir():
        pytest.skip("node is not there, or OPENAI_JS names no folder with OpenAI's client")
    url = serve().url
    command = [node, str(SCRIPT), str(Path(folder).resolve()), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    expected = in_python(url)
    # without a seed each answer is drawn anew; greedy and scripted ones are the same
    drawn = {"whole", "streamed"}
    seen = json.loads(done.stdout)
    assert {key: one for key, one in seen.items() if key not in drawn} == {
        key: one for key, one in expected.items() if key not in drawn
    }
    assert [len(one) for one in (*seen["whole"], seen["streamed"])] == [5, 5, 5]
