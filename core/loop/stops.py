"""Which token ids may end a request: one look-up finds the few tokens of a step to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray


class StopIds:
    """Counts, for each id, the open requests that it would end."""

    def __init__(self, ids: int) -> None:
        """Watch for nothing yet.

        Args:
            ids: Every stop id is below it.
        """
        self._watchers = np.zeros(ids, dtype=np.int32)

    def add(self, ids: Collection[int]) -> None:
        """Watch for the different stop ids of one more request."""
        if ids:
            self._watchers[list(ids)] += 1

    def remove(self, ids: Collection[int]) -> None:
        """Undo an `add`."""
        if ids:
            self._watchers[list(ids)] -= 1

    def among(self, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return for each token whether it may end a request: at least for those that do."""
        return self._watchers.take(tokens, mode="clip") > 0
