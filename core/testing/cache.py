"""What every KV manager must keep to. Subclass `KVManagerContract` in your tests.

    class TestContract(KVManagerContract):
        def make(self, spec):
            return Radix(RadixSettings(), spec)

Needs pytest and hypothesis.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from .cache_capacity import CapacityPromises
from .cache_machine import CacheMachine, TieredCacheMachine
from .cache_prefix import PrefixPromises
from .cache_scope import ScopePromises
from .cache_window import WindowPromises
from .eviction import LeastRecent
from .seeded import seeded_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from ..contracts.cache import CacheSpec, KVManager
    from ..contracts.eviction import EvictionPolicy

__all__ = ["KVManagerContract", "use_at_random"]

_OFTEN = (
    "hit", "evict", "preempt", "Wait", "NoSpace", "revoke", "forget", "hold", "copy", "draft",
    "version", "distrust",
)  # fmt: skip


_SEED = 5
"""Finds each of the broken managers in our own tests within these runs; not every seed does."""


class KVManagerContract(CapacityPromises, PrefixPromises, ScopePromises, WindowPromises):
    """Invariants of a KV manager, by example and in random use. The tests need no fixtures.

    Attributes:
        kinds: Kinds of group that the manager serves; tests of others are skipped.
        runs: Of random use; more find rarer faults.
        shrinks: Whether a failure of random use is reduced to the shortest that shows it.
        tiered: Whether the manager moves pages, so that random use lets moves end late.
    """

    runs: ClassVar[int] = 150
    shrinks: ClassVar[bool] = True
    tiered: ClassVar[bool] = False

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
        seen = use_at_random(
            self.make,
            self.kinds,
            LeastRecent,
            runs=runs,
            steps=steps,
            seed=_SEED,
            shrinks=self.shrinks,
            tiered=self.tiered,
        )
        wanted = [*_OFTEN, *(["pass"] if "sliding" in self.kinds else [])]
        wanted += ["transfer", "withdraw", "move", "swap", "swapped in"] if self.tiered else []
        never = [what for what in wanted if not seen[what]]
        assert not never, f"in random use this never happened: {', '.join(never)}"


def use_at_random(
    make: Callable[[CacheSpec], KVManager],
    kinds: Collection[str],
    policy: Callable[[], EvictionPolicy],
    *,
    runs: int,
    steps: int,
    seed: int = 0,
    expires: bool = False,
    shrinks: bool = True,
    tiered: bool = False,
) -> Counter[str]:
    """Run `CacheMachine`, the same way each time.

    Args:
        make: Makes a manager.
        kinds: Of group that it serves.
        policy: Makes the eviction policy of a pool.
        runs: How often to begin anew.
        steps: Most rules of a run.
        seed: Another one makes other runs.
        expires: Whether the policy lets pages become too old.
        shrinks: Whether a failure is reduced to the shortest that shows it.
        tiered: Whether the manager moves pages.

    Returns:
        How often things happened that tests want to have happened.

    Raises:
        AssertionError: The manager broke a promise.
    """
    seen: Counter[str] = Counter()
    kind = TieredCacheMachine if tiered else CacheMachine

    @hypothesis.seed(seed)
    def machine() -> CacheMachine:
        return kind(make, kinds, seen, policy, expires=expires)

    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # any callable that makes one will do
        settings=settings(
            max_examples=runs,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            backend=seeded_backend(),
            phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    return seen
