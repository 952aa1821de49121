"""What an engine refuses at once, because it could never run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Container

    from ..request import Request


def check_request(request: Request, *, vocab: int, room: int, open_ids: Container[str]) -> None:
    """Refuse what cannot run.

    Args:
        request: As submitted.
        vocab: Token ids are below it.
        room: Longest sequence that the engine holds.
        open_ids: Names that are taken.

    Raises:
        RequestError: Names the field.
    """
    prompt, params = request.prompt_ids, request.params
    if request.task != "generate":
        raise RequestError(f"this engine does not do '{request.task}'", param="task")
    if request.id in open_ids:
        raise RequestError(f"request id '{request.id}' is in use", param="request_id")
    if not prompt:
        raise RequestError("the prompt is empty", param="prompt")
    if min(prompt) < 0 or max(prompt) >= vocab:
        raise RequestError(f"the prompt holds a token id outside 0 to {vocab - 1}", param="prompt")
    named = (*params.logit_bias, *params.allowed_token_ids, *params.stop_token_ids)
    for token in (*named, *(one for word in params.bad_words for one in word)):
        if not 0 <= token < vocab:
            raise RequestError(f"token id {token} is outside 0 to {vocab - 1}", param="sampling")
    if len(prompt) >= room:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, and this engine holds sequences of at most "
            f"{room} tokens, one of them generated",
            param="prompt",
            code="context_length_exceeded",
        )
