"""Chat templates: from messages to the token ids of a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from camshaft.errors import CheckpointError, RequestError

from .control_text import ControlText

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jinja2.parser import Parser

    from .control_text import StandIns
    from .tokenizer import Tokenizer

# A role may become part of a control token (`<|user|>`), so it has to be a word.
_ROLE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# What a template may raise on messages that it was not made for, beside jinja's own errors.
_TEMPLATE_FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


class ChatTemplate:
    """Renders conversations as the model's authors do, in jinja2's sandbox.

    Text that users supply never becomes control tokens: their literals in it (`<|im_end|>`) are
    encoded as plain text, those that the template writes as the tokens that they are.
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        tool_source: str | None = None,
        special_texts: Mapping[str, str] | None = None,
        where: str = "chat template",
    ) -> None:
        """Compile a template.

        Args:
            source: It, or None for a model without: every rendering is then refused.
            tokenizer: Encodes what is rendered.
            tool_source: The one to use with tools, if another.
            special_texts: What templates call `bos_token`, `eos_token` and so on.
            where: The file it comes from, for messages.

        Raises:
            CheckpointError: It is no valid template.
        """
        environment = _environment()
        self.source = source
        self._control = ControlText(tokenizer)
        self._special_texts = dict(special_texts or {})
        try:
            self._plain = environment.from_string(source) if source is not None else None
            with_tools = environment.from_string(tool_source) if tool_source is not None else None
        except TemplateSyntaxError as error:
            raise CheckpointError(f"{where}:{error.lineno}: {error.message}.") from None
        self._with_tools = with_tools or self._plain

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the prompt's token ids. Nothing is added that the template does not write.

        Args:
            messages: With `role` and `content`: a string, a list of text parts (which are joined),
                or nothing where there are `tool_calls`.
            tools: JSON schemas of functions, or None.
            add_generation_prompt: End with the opening of an assistant turn.
            continue_final: Leave the last message open, for the model to go on with.
            variables: Further variables of the template, such as `enable_thinking`.

        Raises:
            RequestError: The messages do not fit, the template refuses them (its own text is the
                message), or the model has no template.
        """
        if continue_final and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other.",
                param="continue_final_message",
            )
        if self._plain is None:
            raise _refusal("the model has no chat template; send its prompt to /v1/completions.")
        conversation = [_checked(message, i) for i, message in enumerate(messages)]
        if not conversation:
            raise _refusal("messages must not be empty.")
        given = {"messages": conversation, "tools": tools, **(variables or {})}
        stand_ins = self._control.stand_ins(_strings(given))
        values = self._disguised(given, stand_ins)
        if continue_final:
            _mark_end(values["messages"][-1], stand_ins.end_mark)
        text = self._run({**values, "add_generation_prompt": add_generation_prompt})
        if continue_final:
            text = _cut_at_mark(text, stand_ins.end_mark)
        return self._control.encode(text, stand_ins)

    def _run(self, values: dict[str, Any]) -> str:
        template = self._with_tools if values["tools"] else self._plain
        assert template is not None
        try:
            return template.render({**self._special_texts, **values})
        except TemplateError as error:
            raise _refusal(error.message or "the chat template refuses these messages.") from error
        except _TEMPLATE_FAULTS as error:
            raise _refusal(f"the chat template cannot render these messages: {error}.") from error

    def _disguised(self, value: Any, stand_ins: StandIns) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, str):
            return self._control.disguise(value, stand_ins)
        if isinstance(value, Mapping):
            return {
                self._disguised(key, stand_ins): self._disguised(item, stand_ins)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._disguised(item, stand_ins) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        raise _refusal(f"messages hold a {type(value).__name__}, which is not JSON.")


def _refusal(text: str) -> RequestError:
    return RequestError(text, param="messages", code="chat_template")


def _checked(message: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Check one message, join its text parts and drop the fields that are null."""
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise _refusal(f"{where} must be an object.")
    kept = {key: value for key, value in message.items() if value is not None}
    role = kept.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise _refusal(f"{where}.role must be a word such as 'user'.")
    if "content" in kept:
        kept["content"] = _text_of(kept["content"], where)
    elif "tool_calls" not in kept:
        raise _refusal(f"{where} has no content.")
    return kept


def _text_of(content: Any, where: str) -> str:  # noqa: ANN401 - JSON of a client
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refusal(f"{where}.content must be a string or a list of parts.")
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise _refusal(f"{where}.content[{place}] is {kind!r}; this model reads text only.")
        if not isinstance(part.get("text"), str):
            raise _refusal(f"{where}.content[{place}].text must be a string.")
        texts.append(part["text"])
    return "".join(texts)


def _strings(value: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _mark_end(message: dict[str, Any], mark: str) -> None:
    """Mark the end of the content, with a space that tells whether the template trims it."""
    if "content" not in message:
        raise _refusal("the last message has no content to continue.")
    message["content"] += f"{mark} "


def _cut_at_mark(text: str, mark: str) -> str:
    at = text.rfind(mark)
    if at < 0:
        raise _refusal("the chat template does not show the last message, so it cannot go on.")
    keeps_spaces = text[at + 1 : at + 2] == " "
    return text[:at] if keeps_spaces else text[:at].rstrip()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


class _Generation(Extension):
    """`{% generation %}` marks answers for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,  # noqa: ANN401 - JSON
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models were not trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
