"""The requests of a call, and what their ends mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from camshaft.errors import RequestError
from camshaft.request import Request, TokenSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.request import RequestOutput, SamplingParams

    from .answers import Call


def request_of(call: Call, index: int, call_id: str) -> Request:
    """Return the request for one choice of a call."""
    prompt, sample = divmod(index, call.n)
    params = call.params
    if params.seed is not None:
        params = msgspec.structs.replace(params, seed=(params.seed + sample) % 2**64)
    return request_for(call, call.prompts[prompt], params, f"{call_id}-{index}")


def request_for(call: Call, ids: Sequence[int], params: SamplingParams, name: str) -> Request:
    """Return a request for what follows `ids`, with all else that the call says."""
    return Request(
        id=name,
        spans=(*call.modules, TokenSpan(list(ids))),
        params=params,
        salt=call.salt,
        scope=call.scope,
        priority=call.priority,
        ttft_slo_s=call.ttft_slo_s,
        tpot_slo_s=call.tpot_slo_s,
        tenant=call.tenant,
    )


def raise_failure(output: RequestOutput) -> None:
    """Raise if a request ended otherwise than by its answer.

    Raises:
        RequestError: It failed, was refused, or was aborted.
    """
    match output.finish:
        case "error":
            raise RequestError(output.message, code="engine_error", status=500)
        case "refused":
            raise RequestError(
                output.message,
                code="refused",
                status=503 if output.retry_after_s is None else 429,
                retry_after_s=output.retry_after_s,
            )
        case "abort":
            raise aborted()


def aborted() -> RequestError:
    """Return what is raised to whoever reads an answer that somebody ended."""
    return RequestError("the request was aborted", code="aborted", status=503)
