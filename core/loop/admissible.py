"""What an engine refuses at once, because it could never run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Container

    from ..request import Request, SamplingParams


def check_request(
    request: Request, *, vocab: int, room: int, open_ids: Container[str], causal: bool = True
) -> None:
    """Refuse what cannot run.

    Args:
        request: As submitted.
        vocab: Token ids are below it.
        room: Longest sequence that the engine holds.
        open_ids: Names that are taken.
        causal: Whether the model generates.

    Raises:
        RequestError: Names the field.
    """
    prompt, params = request.prompt_ids, request.params
    _check_pooling(params, causal)
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
    is_pooled = params.pooling != "none"
    if len(prompt) >= room + is_pooled:
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, and this engine holds sequences of at most "
            f"{room} tokens{'' if is_pooled else ', one of them generated'}",
            param="prompt",
            code="context_length_exceeded",
        )


def _check_pooling(params: SamplingParams, causal: bool) -> None:
    if params.pooling == "none":
        if causal:
            return
        text = "this model makes vectors of texts and generates none; ask for embeddings"
        raise RequestError(text, param="model", code="unsupported")
    if params.max_tokens != 1 or params.prompt_logprobs is not None:
        text = "a pooled request has max_tokens 1 and no prompt_logprobs"
        raise RequestError(text, param="pooling")
