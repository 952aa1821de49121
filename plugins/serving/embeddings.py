"""/v1/embeddings, and /pooling, which gives the same vectors as the model made them."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from camshaft.errors import RequestError
from camshaft.generate import unit

from .body import read_object
from .errors import json_response
from .fields import parse_fields
from .vectors import VectorFields, VectorUsage, vectors_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from starlette.requests import Request
    from starlette.responses import Response

    from .service import Service


class PoolingFields(VectorFields):
    """Of /pooling."""

    input: Any
    encoding_format: Literal["float", "base64"] = "float"


class EmbeddingFields(PoolingFields):
    """Of /v1/embeddings."""

    dimensions: int | None = None
    normalize: bool = True


class Embedding(msgspec.Struct):
    """The vector of one text; base64 is of little-endian float32."""

    index: int
    embedding: list[float] | str
    object: Literal["embedding"] = "embedding"


class Embeddings(msgspec.Struct):
    """The answer of /v1/embeddings."""

    data: list[Embedding]
    model: str
    usage: VectorUsage
    object: Literal["list"] = "list"


class PooledText(msgspec.Struct):
    """The vector of one text, of whatever length it has."""

    index: int
    data: list[float] | str
    object: Literal["pooling"] = "pooling"


class PooledTexts(msgspec.Struct):
    """The answer of /pooling."""

    data: list[PooledText]
    model: str
    usage: VectorUsage
    object: Literal["list"] = "list"


async def embed(service: Service, request: Request) -> Response:
    """Answer with the vectors of texts, each of length 1 unless it is not wanted so."""
    fields = parse_fields(EmbeddingFields, await read_object(request, service.limits))
    if fields.dimensions is not None:
        raise RequestError(
            "dimensions: vectors are not shortened here, as few models are made for it; take the "
            "first elements and divide them by their length where yours is",
            param="dimensions",
            code="unsupported",
        )
    found = await vectors_of(service, request, fields.input, fields, "input")
    rows = map(unit if fields.normalize else _plain, found.values)
    data = [Embedding(at, _written(row, fields)) for at, row in enumerate(rows)]
    return json_response(Embeddings(data, service.info.model, VectorUsage.of(found.tokens)))


async def pool(service: Service, request: Request) -> Response:
    """Answer with the vectors of texts as the model made them."""
    fields = parse_fields(PoolingFields, await read_object(request, service.limits))
    found = await vectors_of(service, request, fields.input, fields, "input")
    data = [PooledText(at, _written(_plain(row), fields)) for at, row in enumerate(found.values)]
    return json_response(PooledTexts(data, service.info.model, VectorUsage.of(found.tokens)))


def _written(row: NDArray[np.float32], fields: PoolingFields) -> list[float] | str:
    if fields.encoding_format == "float":
        numbers: list[float] = row.tolist()
        return numbers
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


def _plain(vector: Sequence[float]) -> NDArray[np.float32]:
    return np.asarray(vector, dtype=np.float32)
