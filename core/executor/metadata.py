"""From a step and the device's exact lengths to what attention and model read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..contracts.attention import AttentionBackend, AttentionMeta
from ..step import FROM_DEVICE, FROM_DRAFTS, Step

if TYPE_CHECKING:
    from .groups import GroupMemory
    from .state import DeviceState


@dataclass(slots=True)
class Slice:
    """Requests of a step that one backend attends for, and their tokens."""

    backend: AttentionBackend
    meta: AttentionMeta
    tokens: slice


@dataclass(slots=True)
class StepTensors:
    """A step on the device. See `AttentionMeta` for shapes.

    Attributes:
        slots: int64 [B].
        tokens: int64 [T] ids, all known now.
        lengths: int64 [B] tokens of each request in the step.
        positions: int64 [T].
        groups: Slices of each KV group.
    """

    slots: torch.Tensor
    tokens: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    groups: list[list[Slice]]


def step_tensors(step: Step, state: DeviceState, groups: list[GroupMemory]) -> StepTensors:
    """Derive positions, write places and page tables on the device. Nothing is read back."""
    host_lengths = np.diff(step.starts)
    host_request = np.repeat(np.arange(len(step.slots), dtype=np.int32), host_lengths)
    host_offset = np.arange(len(host_request), dtype=np.int32) - step.starts[host_request]
    slots = state.to_device(step.slots)
    request = state.to_device(host_request)
    offset = state.to_device(host_offset)
    context = state.lengths[slots]
    positions = context[request] + offset
    tensors = StepTensors(
        slots=slots,
        tokens=_resolve_tokens(step, state, slots, request, offset),
        lengths=state.to_device(host_lengths),
        positions=positions,
        groups=[],
    )
    starts = torch.from_numpy(step.starts).to(state.device)
    for index, group in enumerate(groups):
        longest = int((step.context + host_lengths).max())
        pages = -(-longest // group.page_tokens)
        table = state.tables[index][:, :pages][slots]
        page = positions // group.page_tokens
        meta = AttentionMeta(
            decode_requests=step.decode_requests,
            query_start=starts,
            context=context.to(torch.int32),
            positions=positions,
            request=request,
            page_table=table,
            write_page=table[request, page].long(),
            write_offset=positions - page * group.page_tokens,
            host_query_start=step.starts,
            host_context=step.context,
        )
        tensors.groups.append(_slices(group, meta))
    return tensors


def _resolve_tokens(
    step: Step,
    state: DeviceState,
    slots: torch.Tensor,
    request: torch.Tensor,
    offset: torch.Tensor,
) -> torch.Tensor:
    tokens = state.to_device(step.tokens)
    if (step.tokens == FROM_DEVICE).any():
        tokens = torch.where(tokens == FROM_DEVICE, state.last_token[slots[request]], tokens)
    if (step.tokens == FROM_DRAFTS).any():
        first = state.to_device(np.diff(step.starts) - step.drafts)
        place = (offset - first[request]).clamp(min=0, max=state.drafts.shape[1] - 1)
        drafts = state.drafts[slots[request], place]
        tokens = torch.where(tokens == FROM_DRAFTS, drafts, tokens)
    return tokens


def _slices(group: GroupMemory, meta: AttentionMeta) -> list[Slice]:
    """Cut a step at the border between decode and prefill, if two backends share it."""
    requests = len(meta.host_context)
    cut = meta.decode_requests
    if group.prefill is group.decode or cut in {0, requests}:
        backend = group.decode if cut == requests else group.prefill
        parts = [(backend, meta, slice(0, int(meta.host_query_start[-1])))]
    else:
        parts = [
            (group.decode, _part(meta, 0, cut), slice(0, cut)),
            (
                group.prefill,
                _part(meta, cut, requests),
                slice(cut, int(meta.host_query_start[-1])),
            ),
        ]
    slices = []
    for backend, part, tokens in parts:
        part.plan = backend.plan(part)
        slices.append(Slice(backend, part, tokens))
    return slices


def _part(meta: AttentionMeta, first: int, last: int) -> AttentionMeta:
    starts = meta.host_query_start
    tokens = slice(int(starts[first]), int(starts[last]))
    return AttentionMeta(
        decode_requests=max(0, min(meta.decode_requests, last) - first),
        query_start=meta.query_start[first : last + 1] - int(starts[first]),
        context=meta.context[first:last],
        positions=meta.positions[tokens],
        request=meta.request[tokens] - first,
        page_table=meta.page_table[first:last],
        write_page=meta.write_page[tokens],
        write_offset=meta.write_offset[tokens],
        host_query_start=starts[first : last + 1] - starts[first],
        host_context=meta.host_context[first:last],
    )
