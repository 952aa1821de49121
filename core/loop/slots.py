"""Rows of the device's per-request state."""

from __future__ import annotations


class Slots:
    """Hands out slots, lowest first; a released slot is fenced by the newest step that used it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._fenced: list[tuple[int, int]] = []
        self._passed = 0

    @property
    def free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    @property
    def in_use(self) -> int:
        """Slots taken and not released."""
        return self.count - len(self._free) - len(self._fenced)

    def take(self) -> int:
        """Return a slot. The caller checked `free`."""
        return self._free.pop()

    def release(self, slot: int, step: int) -> None:
        """Give a slot back once `step` is complete, which it may be already."""
        self._fenced.append((step, slot))
        self.fence(self._passed)

    def fence(self, step: int) -> None:
        """Note that all steps up to `step` are complete."""
        self._passed = step
        if not self._fenced:
            return
        still = [entry for entry in self._fenced if entry[0] > step]
        if len(still) < len(self._fenced):
            freed = [slot for after, slot in self._fenced if after <= step]
            self._free = sorted([*self._free, *freed], reverse=True)
            self._fenced = still
