"""Chat templates that refuse, and models without one."""

from __future__ import annotations

import pytest

from camshaft.testing.text import byte_text

NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{{ messages[0].content }}"
)
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}"
)
SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}


@pytest.mark.parametrize(
    ("template", "messages", "text"),
    [
        (NO_SYSTEM, [SYSTEM, USER], "System role not supported"),
        (ALTERNATE, [USER, USER], "roles must alternate"),
        (None, [USER], "no chat template"),
    ],
)
def test_CHT_01_a_template_s_refusal_is_a_400_in_its_own_words(
    serve, template: str | None, messages: list[object], text: str
) -> None:
    server = serve(text=byte_text(template))
    response = server.http.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert text in response.json()["error"]["message"]
    assert server.alive()
