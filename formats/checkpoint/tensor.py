"""One tensor of a checkpoint: its bytes stay on disk until they are used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .formats import FORMATS

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import torch
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class CheckpointTensor:
    """A tensor as it is stored, memory-mapped.

    Attributes:
        name: Its name in the file.
        shape: Dimensions from the outermost to the innermost, torch's order, also for GGUF.
        format: A name of `camshaft.checkpoint.formats.FORMATS`: `f32`, `bf16`, `q4_1`, ...
        data: All its bytes, uint8 `[nbytes]`, mapped copy-on-write: reading loads pages, writing
            never reaches the file. Rows follow each other; a row is whole blocks.
        file: Where it is stored, for messages.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: NDArray[np.uint8]
    file: Path

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in the file."""
        return int(self.data.size)

    @property
    def row_bytes(self) -> int:
        """Bytes of one index of the outermost dimension."""
        return FORMATS[self.format].nbytes((1, *self.shape[1:]))

    def rows(self, start: int, stop: int) -> CheckpointTensor:
        """Return indices `start ... stop - 1` of the outermost dimension, sharing the bytes.

        Args:
            start: First index, at least 0.
            stop: One past the last, at most `shape[0]`.

        Raises:
            IndexError: The range is not inside the tensor, or it has no rows that can be split
                without cutting a block (a packed vector).
        """
        packed_vector = len(self.shape) < 2 and FORMATS[self.format].block > 1
        if not self.shape or packed_vector or not 0 <= start <= stop <= self.shape[0]:
            raise IndexError(
                f"rows {start}:{stop} of '{self.name}', {self.format} {list(self.shape)}"
            )
        data = self.data[start * self.row_bytes : stop * self.row_bytes]
        return replace(self, shape=(stop - start, *self.shape[1:]), data=data)

    def dequantize(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return the values as a torch tensor of `shape`.

        Args:
            dtype: Of the result; None is float32. A tensor that is stored in this dtype shares the
                mapped bytes; any other is computed in float32, then rounded once.

        Raises:
            CheckpointError: No decoder for the format; names tensor, format and file.
        """
        # Torch takes seconds to import, and a process that only needs the configuration has none.
        from .dequantize import dequantize

        return dequantize(self, dtype)
