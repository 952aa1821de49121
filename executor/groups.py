"""The memory of each KV group and the attention backends that read it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from camshaft.contracts.attention import AttentionBackend
    from camshaft.contracts.hardware import HardwareBackend
    from camshaft.contracts.kv_quant import KVField, KVLayout


def _bytes(one: KVField, pages: int) -> int:
    itemsize: int = getattr(torch, one.dtype).itemsize
    return pages * prod(one.shape) * itemsize


def field_bytes(layout: KVLayout, page_count: int) -> list[int]:
    """Return the bytes of each field for `page_count` pages, padded to 64."""
    return [-(-_bytes(one, page_count) // 64) * 64 for one in layout.fields]


def page_bytes(layout: KVLayout) -> int:
    """Return the bytes of one layer's page."""
    return sum(_bytes(one, 1) for one in layout.fields)


@dataclass(slots=True)
class GroupMemory:
    """A KV group on the device.

    Attributes:
        prefill: Attends for requests with several tokens.
        decode: Attends for requests with one; may be the same object.
        page_tokens: P of a kernel page.
        fields: By layer of the model: the layer's tensors, each [kernel pages, ...].
    """

    prefill: AttentionBackend
    decode: AttentionBackend
    page_tokens: int
    fields: dict[int, dict[str, torch.Tensor]]

    def all_fields(self) -> list[torch.Tensor]:
        """Return every tensor of every layer."""
        return [tensor for layer in self.fields.values() for tensor in layer.values()]

    def fill(self, pages: torch.Tensor, value: float) -> None:
        """Overwrite kernel pages; fields that hold no floats become zero."""
        for tensor in self.all_fields():
            tensor[pages] = value if tensor.is_floating_point() else 0


def allocate_group(
    hardware: HardwareBackend,
    prefill: AttentionBackend,
    decode: AttentionBackend,
    layers: tuple[int, ...],
    kernel_pages: int,
    page_tokens: int,
) -> GroupMemory:
    """Allocate one byte region for a group and lay its layers' fields into it.

    Args:
        hardware: Gives the region.
        prefill: Decides the layout; the recipe's check made sure that `decode` agrees.
        decode: See `GroupMemory`.
        layers: Of the model.
        kernel_pages: Null pages included.
        page_tokens: P.
    """
    layout = decode.kv_layout()
    sizes = field_bytes(layout, kernel_pages)
    region = hardware.allocate(sum(sizes) * len(layers))
    fields: dict[int, dict[str, torch.Tensor]] = {}
    at = 0
    for layer in layers:
        fields[layer] = {}
        for one, size in zip(layout.fields, sizes, strict=True):
            dtype: torch.dtype = getattr(torch, one.dtype)
            raw = region[at : at + _bytes(one, kernel_pages)]
            fields[layer][one.name] = raw.view(dtype).view(kernel_pages, *one.shape)
            at += size
    return GroupMemory(prefill, decode, page_tokens, fields)
