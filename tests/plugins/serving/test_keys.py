"""API keys: who is let in, and files that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from camshaft.errors import CamshaftError
from camshaft.plugins.serving.keys import Keys


@pytest.fixture
def locked(serve, tmp_path: Path) -> Any:
    path = tmp_path / "keys"
    path.write_text("# of the team\nfirst-secret\n\n  second-secret  \n")
    return serve(settings={"api_keys": str(path)})


@pytest.mark.parametrize("key", ["first-secret", "second-secret"])
def test_API_01_each_of_the_keys_lets_in(locked, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    answer = httpx.post(f"{locked.url}/v1/completions", json={"prompt": "echo a"}, headers=headers)
    assert answer.json()["choices"][0]["text"] == "a"


@pytest.mark.parametrize(
    "sent",
    [None, "", "Bearer", "Bearer wrong-secret", "Bearer first-secretx", "first-secret",
     "Basic first-secret", "Bearer # of the team", "Bearer \u00e9"],
)  # fmt: skip
def test_API_01_whatever_else_is_a_401_everywhere_but_for_health(locked, sent: str | None) -> None:
    headers = {} if sent is None else {b"authorization": sent.encode("latin-1")}
    for path in ("/v1/models", "/metrics", "/info", "/nothing"):
        refused = httpx.get(f"{locked.url}{path}", headers=headers)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert "secret" not in error["message"]
    assert httpx.get(f"{locked.url}/health", headers=headers).status_code == 200


def test_API_01_the_official_client_raises_an_authentication_error(locked) -> None:
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key="nobody", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()
        assert client.with_options(api_key="first-secret").models.list().data[0].id == "toy"


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "holds no key"),
        (b"# nothing\n\n", "holds no key"),
        (b"good-secret\nshort\n", "keys:2: a key has at least 8 ASCII characters"),
        (b"two words\n", "keys:1: a key"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_file_without_usable_keys_is_refused_with_its_line(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(CamshaftError, match=fault) as caught:
        Keys.of_file(path)
    assert "good-secret" not in str(caught.value)
    assert "short" not in str(caught.value).replace("shorter", "")


def test_keys_are_kept_as_digests_of_this_process_alone() -> None:
    keys = [Keys(["first-secret"]) for _ in range(2)]
    assert keys[0]._digests != keys[1]._digests
    assert not any("first-secret" in repr(vars(one)) for one in keys)
