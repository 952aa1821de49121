"""GGUF files: metadata, and tensors that stay on disk.

Source: the GGUF specification in the ggml repository (`docs/gguf.md`), versions 2 and 3. The header
is walked once; for a vocabulary of 49,000 tokens and as many merges that is about 0.05 s.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import CheckpointError

from .formats import GGML_FORMATS
from .mapped import map_file
from .tensor import CheckpointTensor

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_MOST_NESTING = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# Numbers of the value types in the file.
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


class GGUFFile:
    """An open GGUF file.

    Attributes:
        path: Where it is.
        version: Of the file format.
        metadata: Every key with its value as a plain Python object.
        tensors: By the file's own names (`blk.0.attn_q.weight`).
    """

    def __init__(self, path: Path) -> None:
        """Read the header and map the rest.

        Raises:
            CheckpointError: Not a GGUF file, an unsupported version, damaged or truncated.
        """
        self.path = path
        header = _Header(map_file(path), path)
        self.version = header.version
        self.metadata = header.read_metadata()
        self.tensors = header.read_tensors(self._alignment())

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0:
            raise CheckpointError(
                f"{self.path}: general.alignment is {alignment!r}: the file is damaged. "
                "Fetch it again."
            )
        return alignment


class _Header:
    """A cursor over the header; every read checks that the bytes are there."""

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self._buffer = buffer
        self._end = len(buffer)
        self._at = 0
        self._path = path
        self._reading = "its header"
        if self._take(4) != _MAGIC:
            raise CheckpointError(
                f"{path}: not a GGUF file; it starts with {bytes(buffer[:4])!r}, not {_MAGIC!r}. "
                "Fetch it again."
            )
        self.version = self._u32()
        if self.version not in _VERSIONS:
            raise CheckpointError(
                f"{path}: GGUF version {self.version} is not supported; 2 and 3 (little-endian) "
                "are. Convert the model again with a current llama.cpp."
            )
        self._tensor_count = self._u64()
        self._key_count = self._u64()

    def read_metadata(self) -> dict[str, Any]:
        """Read all keys and values."""
        metadata: dict[str, Any] = {}
        for index in range(self._key_count):
            self._reading = f"metadata entry {index}"
            key = self._string()
            self._reading = f"metadata '{key}'"
            if key in metadata:
                raise self._damaged("appears twice")
            metadata[key] = self._value(self._u32())
        return metadata

    def read_tensors(self, alignment: int) -> dict[str, CheckpointTensor]:
        """Read the tensor table and map the data behind it."""
        table = []
        for index in range(self._tensor_count):
            self._reading = f"entry {index} of the tensor table"
            table.append(self._tensor_entry())
        data_start = (self._at + alignment - 1) // alignment * alignment
        everything = np.frombuffer(self._buffer, np.uint8)
        tensors: dict[str, CheckpointTensor] = {}
        for name, shape, number, offset in table:
            self._reading = f"tensor '{name}'"
            if name in tensors:
                raise self._damaged("appears twice")
            if offset % alignment:
                raise self._damaged(f"starts at {offset}, which is no multiple of {alignment}")
            data = self._data(everything, shape, number, data_start + offset)
            tensors[name] = CheckpointTensor(
                name, shape, GGML_FORMATS[number].name, data, self._path
            )
        return tensors

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        self._reading = f"tensor '{name}'"
        dimensions = self._u32()
        if dimensions > _MOST_DIMENSIONS:
            raise self._damaged(f"has {dimensions} dimensions; at most {_MOST_DIMENSIONS} exist")
        innermost_first = [self._u64() for _ in range(dimensions)]
        return name, tuple(reversed(innermost_first)), self._u32(), self._u64()

    def _data(
        self, everything: np.ndarray[Any, Any], shape: tuple[int, ...], number: int, start: int
    ) -> np.ndarray[Any, Any]:
        format = GGML_FORMATS.get(number)
        if format is None:
            raise self._fault(
                f"is of GGML type {number}, which is not known. Convert the model to a usual type, "
                "such as Q4_K_M, with llama.cpp's `llama-quantize`"
            )
        if shape and shape[-1] % format.block:
            raise self._damaged(
                f"has rows of {shape[-1]} elements, but {format.name} stores {format.block} at once"
            )
        stop = start + format.nbytes(shape)
        if stop > self._end:
            raise self._fault(
                f"ends at byte {stop}, but the file has {self._end}: it is truncated. "
                "Fetch it again"
            )
        return everything[start:stop]

    def _value(self, kind: int, depth: int = 0) -> Any:  # noqa: ANN401 - whatever the file holds
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(depth)
        return self._numbers(kind, 1)[0]

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._u32(), self._u64()
        if kind == _STRING:
            return self._strings(count)
        if kind != _ARRAY:
            return self._numbers(kind, count)
        if depth == _MOST_NESTING:
            raise self._damaged(f"nests arrays deeper than {_MOST_NESTING}")
        # An array takes at least 12 bytes, so a damaged count cannot make this run for ever.
        self._need(12 * count)
        return [self._value(_ARRAY, depth + 1) for _ in range(count)]

    def _numbers(self, kind: int, count: int) -> list[Any]:
        code = _SCALARS.get(kind)
        if code is None:
            raise self._damaged(f"is of value type {kind}, which is not known")
        size = np.dtype(code).itemsize
        self._need(size * count)
        values: list[Any] = np.frombuffer(self._buffer, code, count, self._at).tolist()
        self._at += size * count
        return values

    def _strings(self, count: int) -> list[str]:
        """Read an array of strings; the loop that decides how long opening a file takes."""
        self._need(8 * count)
        buffer, at, end, length_of = self._buffer, self._at, self._end, _U64.unpack_from
        raw = []
        for _ in range(count):
            start = at + 8
            if start > end:
                raise self._truncated()
            at = start + length_of(buffer, start - 8)[0]
            if at > end:
                raise self._truncated()
            raw.append(buffer[start:at])
        self._at = at
        try:
            return [text.decode() for text in raw]
        except UnicodeDecodeError:
            raise self._damaged("is not valid UTF-8") from None

    def _string(self) -> str:
        return self._strings(1)[0]

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def _take(self, size: int) -> bytes:
        self._need(size)
        self._at += size
        return self._buffer[self._at - size : self._at]

    def _need(self, size: int) -> None:
        if size > self._end - self._at:
            raise self._truncated()

    def _truncated(self) -> CheckpointError:
        return self._fault(f"goes beyond the end of the file ({self._end} bytes); fetch it again")

    def _damaged(self, text: str) -> CheckpointError:
        return self._fault(f"{text}: the file is damaged. Fetch it again")

    def _fault(self, text: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {self._reading} {text}.")
