"""From a step and the device's exact lengths to what attention and model read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionMeta, SharedPrefixes
from camshaft.step import FROM_DEVICE, FROM_DRAFTS, Step

from .rows import HostRows, LogitRows
from .upload import Upload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

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
        rows: Rows with logits, or None when the step only fills pages.
    """

    slots: torch.Tensor
    tokens: torch.Tensor
    lengths: torch.Tensor
    positions: torch.Tensor
    groups: list[list[Slice]]
    rows: LogitRows | None


def step_tensors(
    step: Step,
    state: DeviceState,
    groups: list[GroupMemory],
    shared: Sequence[SharedPrefixes | None],
) -> StepTensors:
    """Derive positions, write places and page tables on the device. Nothing is read back.

    Args:
        step: The step.
        state: Up to date with it.
        groups: KV groups.
        shared: What decoding requests share in each of them.
    """
    host_lengths = np.diff(step.starts)
    host_request = np.repeat(np.arange(len(step.slots), dtype=np.int32), host_lengths)
    host_offset = np.arange(len(host_request), dtype=np.int32) - step.starts[host_request]
    host_rows = HostRows.of(step)
    upload = Upload()
    parts = (step.slots, host_lengths, host_request, host_offset, step.tokens, step.starts)
    for values in parts:
        upload.add(values)
    if host_rows is not None:
        host_rows.add_to(upload)
    upload.send(state.device)
    slots, lengths, request, offset, tokens, starts = map(upload.tensor, range(len(parts)))
    context = state.lengths[slots]
    places = context[request] + offset
    positions = places
    if state.shifts(step.slots):
        positions = places + state.offsets[slots][request]
    per_request = AttentionMeta(
        decode_requests=step.decode_requests,
        query_start=starts,
        context=context,
        positions=positions,
        request=request,
        page_table=state.tables[0],  # this and the next two are each group's own
        write_page=places,
        write_offset=places,
        host_query_start=step.starts,
        host_context=step.context,
    )
    longest = int((step.context + host_lengths).max())
    return StepTensors(
        slots=slots,
        tokens=_resolve_tokens(step, state, slots[request], tokens, offset, lengths[request]),
        lengths=lengths,
        positions=positions,
        groups=[
            _slices(
                group,
                replace(
                    _of_group(per_request, places, state.tables[index], slots, group, longest),
                    shared=shared[index],
                ),
            )
            for index, group in enumerate(groups)
        ],
        rows=None if host_rows is None else host_rows.on_device(upload, step, state),
    )


def _of_group(
    meta: AttentionMeta,
    places: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    group: GroupMemory,
    longest: int,
) -> AttentionMeta:
    """Fill in what depends on a group: its pages, and where tokens are written.

    Args:
        meta: The rest.
        places: int64 [T] index of each token in its sequence.
        table: Of the group.
        slots: int64 [B].
        group: Its memory.
        longest: Tokens of the longest sequence after this step.
    """
    pages = -(-longest // group.page_tokens)
    own = table[:, :pages][slots]
    page = places // group.page_tokens
    return replace(
        meta,
        page_table=own,
        write_page=own[meta.request, page].long(),
        write_offset=places - page * group.page_tokens,
    )


def _resolve_tokens(
    step: Step,
    state: DeviceState,
    slot: torch.Tensor,
    tokens: torch.Tensor,
    offset: torch.Tensor,
    length: torch.Tensor,
) -> torch.Tensor:
    """Put the ids that only the device knows in their places.

    Args:
        step: For the host's view of the tokens.
        state: Has last tokens and drafts.
        slot: int64 [T] of each token's request.
        tokens: int64 [T] as the step has them.
        offset: int64 [T] place of each token in its request.
        length: int64 [T] tokens of its request in the step.
    """
    if _holds(step.tokens, FROM_DEVICE):
        tokens = torch.where(tokens == FROM_DEVICE, state.last_token[slot], tokens)
    if _holds(step.tokens, FROM_DRAFTS):
        host_drafts = np.repeat(step.drafts, np.diff(step.starts))
        first = length - state.to_device(host_drafts)
        place = (offset - first).clamp(min=0, max=state.drafts.shape[1] - 1)
        tokens = torch.where(tokens == FROM_DRAFTS, state.drafts[slot, place], tokens)
    return tokens


def _holds(tokens: NDArray[np.int32], what: int) -> bool:
    return bool((tokens == what).any())


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
        shared=None if first else meta.shared,
    )
