"""Random use rejects managers that break one promise each about moving pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from camshaft.contracts.cache import KVManager
from camshaft.contracts.moves import Moved, Moves, PageMove
from camshaft.testing.cache import use_at_random
from camshaft.testing.eviction import LeastRecent
from tests.plugins.cache.tiers import tiered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.contracts.cache import CacheSpec


class Sound:
    """A manager with tiers, of which a test breaks a method."""

    def __init__(self, sound: KVManager) -> None:
        self.sound = sound

    def __getattr__(self, name: str) -> object:
        return getattr(self.sound, name)


class ExportsTooLate(Sound):
    """Pages are read behind a step that was launched after they were given up."""

    held: tuple[tuple[PageMove, ...], ...] = ((), ())

    def take_moves(self) -> Moves:
        moves = self.sound.take_moves()
        first, *others = (*self.held, moves.exports)
        self.held = tuple(others)
        return Moves(first, moves.loads)


class LoadsInAnotherOrder(Sound):
    def take_moves(self) -> Moves:
        exports, loads = self.sound.take_moves()
        return Moves(exports, tuple(one._replace(pages=one.pages[::-1]) for one in loads))


class LoadsTooLate(Sound):
    held: tuple[PageMove, ...] = ()

    def take_moves(self) -> Moves:
        moves = self.sound.take_moves()
        held, self.held = self.held, moves.loads
        return Moves(moves.exports, held)


class TakesTraysBackEarly(Sound):
    def take_moves(self) -> Moves:
        moves = self.sound.take_moves()
        self.sound.moved([Moved(one.ticket) for one in (*moves.exports, *moves.loads)])
        return moves

    def moved(self, ended: Sequence[Moved]) -> None:
        pass


class TrustsFailedExports(Sound):
    def moved(self, ended: Sequence[Moved]) -> None:
        self.sound.moved([Moved(one.ticket) for one in ended])


class KeepsWhatIsForgotten(Sound):
    def free(self, uid: int, step: int, *, hold: str = "", forget: bool = False) -> None:
        self.sound.free(uid, step, hold=hold)


FAULTS = [
    ExportsTooLate,
    LoadsInAnotherOrder,
    LoadsTooLate,
    TakesTraysBackEarly,
    TrustsFailedExports,
    KeepsWhatIsForgotten,
]


def play(manager: type[Sound], runs: int = 150) -> None:
    def make(spec: CacheSpec) -> KVManager:
        made: KVManager = manager(tiered(spec))  # type: ignore[assignment]
        return made

    use_at_random(
        make, ("full",), LeastRecent, runs=runs, steps=50, seed=4, shrinks=False, tiered=True
    )


def test_a_sound_manager_passes() -> None:
    play(Sound, runs=40)


@pytest.mark.parametrize("manager", FAULTS)
def test_random_use_finds_the_fault(manager: type[Sound]) -> None:
    with pytest.raises(AssertionError):
        play(manager)
