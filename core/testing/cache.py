"""What every KV manager must keep to. Subclass `KVManagerContract` in your tests.

    class TestContract(KVManagerContract):
        def make(self, spec):
            return Radix(RadixSettings(), spec)

Needs pytest and hypothesis.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .cache_capacity import CapacityPromises
from .cache_machine import CacheMachine
from .cache_prefix import PrefixPromises
from .cache_window import WindowPromises

if TYPE_CHECKING:
    from ..contracts.cache import CacheSpec, KVManager

__all__ = ["KVManagerContract"]

_OFTEN = ("hit", "evict", "preempt", "Wait", "NoSpace", "revoke", "forget", "hold", "copy", "draft")


class KVManagerContract(CapacityPromises, PrefixPromises, WindowPromises):
    """Invariants of a KV manager, by example and in random use. The tests need no fixtures.

    Attributes:
        kinds: Kinds of group that the manager serves; tests of others are skipped.
        runs: Of random use; more find rarer faults.
        shrinks: Whether a failure of random use is reduced to the shortest that shows it.
    """

    runs: ClassVar[int] = 150
    shrinks: ClassVar[bool] = True

    def make(self, spec: CacheSpec) -> KVManager:
        """Return a new manager."""
        raise NotImplementedError

    def test_random_use_leaves_every_request_its_own_keys(self) -> None:
        """See `CacheMachine`."""
        self._use(self.runs, steps=50)

    @pytest.mark.slow
    @pytest.mark.timeout(600)
    def test_much_random_use_leaves_every_request_its_own_keys(self) -> None:
        """The same, for longer and in longer runs."""
        self._use(2 * self.runs, steps=100)

    def _use(self, runs: int, steps: int) -> None:
        seen: Counter[str] = Counter()
        phases = [Phase.generate, Phase.shrink] if self.shrinks else [Phase.generate]
        run_state_machine_as_test(
            # any callable that makes a machine will do, whatever the annotation says
            lambda: CacheMachine(self.make, self.kinds, seen),  # type: ignore[arg-type]
            settings=settings(
                max_examples=runs,
                stateful_step_count=steps,
                deadline=None,
                derandomize=True,
                database=None,
                phases=phases,
                suppress_health_check=list(HealthCheck),
            ),
        )
        wanted = [*_OFTEN, *(["pass"] if "sliding" in self.kinds else [])]
        never = [what for what in wanted if not seen[what]]
        assert not never, f"in random use this never happened: {', '.join(never)}"
