"""The endpoints of prompt schemas: to register one, and to complete a prompt behind its modules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from camshaft.contracts.route import Route
from camshaft.errors import RequestError

from .body import read_object
from .completions import run_completion
from .errors import json_response
from .fields import CompletionFields, parse_fields
from .mounting import answering, service_of
from .prompt_modules import Schema, lay_out, read_places

if TYPE_CHECKING:
    from .components import PromptSchemasSettings

PATH = "/v1/prompt_schemas"
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)


class ModularFields(CompletionFields):
    """Of /v1/prompt_schemas/{name}/completions."""

    modules: list[str]


class PromptSchemas(Route):
    """Keeps schemas for one server. Keys and values of modules are the engine's, in its cache."""

    def __init__(self, settings: PromptSchemasSettings) -> None:
        self.settings = settings

    def mount(self, app: Any, engine: Any) -> None:  # noqa: ANN401 - as the contract has it
        """See `Route.mount`."""
        schemas: dict[str, Schema] = {}

        async def register(request: Request) -> Response:
            schema = await self._read(request, schemas)
            schemas[schema.name] = schema
            return json_response(_described(schema))

        async def listed(_: Request) -> Response:
            shown = [_described(one) for one in schemas.values()]
            return json_response({"object": "list", "data": shown})

        async def remove(request: Request) -> Response:
            schema = _find(schemas, request)
            del schemas[schema.name]
            return json_response({"id": schema.name, "object": "prompt_schema", "deleted": True})

        async def complete(request: Request) -> Response:
            service = service_of(request)
            schema = _find(schemas, request)
            fields = parse_fields(ModularFields, await read_object(request, service.limits))
            return await run_completion(service, request, fields, schema.chosen(fields.modules))

        add = app.add_api_route
        add(PATH, answering(register), methods=["POST"])
        add(PATH, answering(listed), methods=["GET"])
        add(f"{PATH}/{{name}}", answering(remove), methods=["DELETE"])
        add(f"{PATH}/{{name}}/completions", answering(complete), methods=["POST"])

    async def _read(self, request: Request, schemas: dict[str, Schema]) -> Schema:
        service = service_of(request)
        body = await read_object(request, service.limits)
        other = sorted(set(body) - {"name", "modules"})
        if other:
            message = f"'{other[0]:.100}' is not a field of a schema"
            raise RequestError(message, param=other[0][:100], code="unknown_field")
        name = body.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError("name must be 1 to 128 letters, digits and _ . -", param="name")
        if len(schemas) >= self.settings.most_schemas and name not in schemas:
            raise RequestError(
                f"there are {len(schemas)} schemas, the most that this server keeps; remove one",
                param="name",
                code="too_many_schemas",
            )
        places = read_places(body.get("modules"))
        page_tokens = service.info.page_tokens
        return await lay_out(name, places, service.prompter, page_tokens, self.settings.pad)


def _find(schemas: dict[str, Schema], request: Request) -> Schema:
    name = request.path_params["name"]
    if name not in schemas:
        raise RequestError(
            f"there is no prompt schema '{name:.100}'", code="schema_not_found", status=404
        )
    return schemas[name]


def _described(schema: Schema) -> dict[str, Any]:
    modules = [
        {"name": name, "position": span.position, "tokens": len(span.ids)}
        for name, span in schema.modules.items()
    ]
    return {"id": schema.name, "object": "prompt_schema", "modules": modules}
