"""Executor: runs packed steps. Arrays in, arrays out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ..errors import CamshaftError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ..step import Step, StepOutput
    from .moves import Moved, PageMove, Tray


class Executor(ABC):
    """Owns the device's per-slot state and runs steps in the order of their launch.

    A step is two launches: `launch` runs the forward pass up to the selected rows, `sample`
    chooses tokens. Neither may block on the device. `wait` is the only call that does. At most
    `depth + 1` steps are between `launch` and `wait`.

    Attributes:
        wants_fresh: Steps must list the pages that change hands (`Step.fresh`).
        immediate: Nothing runs beside the host now: what was sampled is complete.
        moves_pages: Whether it has `tray`, `move` and `moved`, for caches with tiers.
    """

    wants_fresh: bool = False
    immediate: bool = False
    moves_pages: bool = False

    @abstractmethod
    def launch(self, step: Step) -> None:
        """Start the forward pass of `step`.

        Raises:
            Exception: The launch failed; nothing of the step has an effect and its pages are
                revoked. The requests of the step end with an error.
        """

    @abstractmethod
    def sample(self, step: int, masks: NDArray[np.int32] | None = None) -> None:
        """Choose tokens for the rows of a launched step.

        Args:
            step: Its id.
            masks: [rows, ceil(V / 32)] bits of allowed tokens for the rows with logits, in step
                order; None allows all. Rows without a constraint have all bits set.

        Raises:
            Exception: No tokens could be chosen. The step is forgotten: nobody waits for it, and
                its requests end with an error.
        """

    @abstractmethod
    def wait(self, step: int) -> StepOutput:
        """Block until a sampled step is complete and return its results. Once, in launch order."""

    def tray(self, group: int, pages: int) -> Tray:
        """Return host memory for so many pages of a KV group. Slow: memory may be page-locked."""
        raise self._moves_nothing()

    def move(self, exports: Sequence[PageMove], loads: Sequence[PageMove]) -> None:
        """Start to copy pages, beside the steps; may not block on the device.

        Exports read pages as they are behind all steps launched so far, whatever is launched later.
        Loads come behind the exports and before the next step: it and later ones read what was
        loaded, also while that is still under way. No step in flight touches pages of a load.

        Raises:
            Exception: None of the loads has an effect on a later step, and none of these moves
                is reported by `moved`.
        """
        raise self._moves_nothing()

    def moved(self) -> list[Moved]:
        """Return what has ended since the last call; never waits.

        It goes on by itself: it does not take another step until a move ends.
        """
        raise self._moves_nothing()

    def _moves_nothing(self) -> CamshaftError:
        return CamshaftError(
            f"executor {type(self).__name__} does not move pages; choose a cache without tiers"
        )

    def complete(self) -> bool:
        """End what the host has a part in, on a device that has no queue of its own.

        Returns:
            Whether there was anything: the newest step, which is complete now.
        """
        return False

    def drain(self) -> None:  # noqa: B027 - optional
        """Note that results in flight are needed before anything more is launched."""

    def sleep(self) -> int:
        """Give the memory of all pages back to the device and return its bytes.

        Nothing is in flight. Until `wake` no step follows, and no move. Optional.
        """
        return 0

    def wake(self) -> None:  # noqa: B027 - optional
        """Take that memory again; all pages are zero.

        Raises:
            DeviceError: It is not free any more; the executor still sleeps.
        """

    def close(self) -> None:  # noqa: B027 - optional
        """Release the device. No other call follows."""
