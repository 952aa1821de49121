"""The fields of requests: their types, and which are taken or refused by name alone."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from camshaft.errors import RequestError, did_you_mean

F = TypeVar("F", bound=BaseModel)

NO_SEMANTICS = frozenset(
    {
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Accepted without effect: unmodified clients send them, and they say nothing about the answer."""

LATER: dict[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields that have a meaning and are not supported yet, with the values that ask for nothing."""


class StreamOptions(BaseModel):
    """Of a streamed answer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False  # padding against eavesdroppers: none is ever added here


class CacheFields(BaseModel):
    """Where and for how long pages are cached."""

    model_config = ConfigDict(strict=True, extra="forbid")

    namespace: str
    version: int = 0
    ttl_s: float | None = None


PARTS = frozenset({*StreamOptions.model_fields, *CacheFields.model_fields})
"""Fields of fields: a refusal names them as `field.part`."""


class Fields(BaseModel):
    """What completions and chat share. Types only: ranges are those of `check_params`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] = []
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = {}
    seed: int | None = None
    user: str = ""
    # not in OpenAI's API:
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: list[int] = []
    min_tokens: int = 0
    ignore_eos: bool = False
    bad_words: list[str] = []
    allowed_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    return_token_ids: bool = False
    cache_salt: str = ""
    cache: CacheFields | None = None
    priority: int = 0
    ttft_slo_ms: float | None = None
    tpot_slo_ms: float | None = None
    request_id: str | None = None
    use_beam_search: bool = False
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionFields(Fields):
    """Of /v1/completions."""

    prompt: Any
    best_of: int | None = None
    echo: bool = False
    logprobs: int | None = None


class ChatFields(Fields):
    """Of /v1/chat/completions."""

    messages: list[Any]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


def parse_fields(form: type[F], body: dict[str, Any]) -> F:
    """Read the fields of a request. A field that is null counts as absent.

    Raises:
        RequestError: A field is unknown, not supported, missing or of the wrong type; names it.
    """
    given = {name: value for name, value in body.items() if value is not None}
    for name in [name for name in given if name not in form.model_fields]:
        _check_other(form, name, given.pop(name))
    try:
        fields = form.model_validate(given)
    except ValidationError as error:
        raise _refusal(error) from None
    if isinstance(fields, Fields) and fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    return fields


def _check_other(form: type[BaseModel], name: str, value: object) -> None:
    if name in NO_SEMANTICS or any(_same(value, one) for one in LATER.get(name, ())):
        return
    param = name[:100]
    if name in LATER:
        raise RequestError(f"{name} is not supported yet", param=param, code="unsupported")
    hint = did_you_mean(param, form.model_fields)
    message = f"'{param}' is not a field of this endpoint{hint}"
    raise RequestError(message, param=param, code="unknown_field")


def _same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _refusal(error: ValidationError) -> RequestError:
    """Tell the first faulty field; of a union, what each branch would take."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    name = str(details[0]["loc"][0])
    ours = [one for one in details if one["loc"][0] == name]
    steps = ours[0]["loc"][1:]
    where = name + "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}"
        for step in steps
        if isinstance(step, int) or step in PARTS
    )
    if ours[0]["type"] == "missing":
        return RequestError(f"{where} is missing", param=name)
    if ours[0]["type"] == "extra_forbidden":
        return RequestError(f"{name} has no field '{str(steps[-1])[:100]}'", param=name)
    texts = dict.fromkeys(one["msg"].removeprefix("Input ") for one in ours[:3])
    return RequestError(f"{where} {' or '.join(texts)}"[:500], param=name)
