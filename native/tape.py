"""Recording a function for a processor: its operations again, without the Python around them.

While a function runs, every torch operation and every compiled one is written down in order, with
the tensors that they read and fill. A replay runs them again on the same tensors: a row of compiled
operations is one call, whatever their number. What only changes how memory is seen costs nothing.
"""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from camshaft.errors import DeviceError

from .arena import Arena, storage_of
from .calls import keep_in
from .library import library, reasons
from .traits import traits_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Outputs = tuple[torch.Tensor | None, ...]
    Work = Callable[[], object]

_TO_HOST = frozenset({"tolist", "numpy", "__array__", "__dlpack__"})


def record(function: Callable[[], Outputs], arena: Arena) -> Recorded:
    """Run a function once, and return a recording of what it did.

    Args:
        function: Reads and fills tensors on the processor; results are those it makes and returns.
            What it does beside tensors happens now and in no replay.
        arena: For what it computes. Recordings with the same arena replay one after the other.

    Raises:
        DeviceError: It does what cannot be recorded: names the operation. What it did until then
            is done.
    """
    recorder = _Recorder(arena)
    try:
        with torch.inference_mode(), _NothingToHost(), recorder:
            results = function()
        recorder.note_compiled()
    finally:
        recorder.close()
    return Recorded(recorder, arena, results)


class Recorded:
    """A recording; see `HardwareBackend.capture`.

    Attributes:
        compiled: Compiled operations in it.
        calls: What a replay calls, one after the other.
    """

    def __init__(self, recorder: _Recorder, arena: Arena, results: Outputs) -> None:
        self.compiled = recorder.compiled
        self.calls = len(recorder.work)
        at, self._start, finish = recorder.longest()
        self._before = recorder.work[:at]
        self._after = [finish, *recorder.work[at + 1 :]]
        self._kept = (recorder.kept, arena, recorder.tape)  # their addresses are in the work
        self._arena = arena
        self._results = results

    def replay(self) -> Outputs:
        """Run the operations; return the results, the same tensors each time."""
        return self.begin()()

    def begin(self) -> Callable[[], Outputs]:
        """Run the operations; the longest row of compiled ones goes on beside the caller.

        Returns:
            What ends it and returns the results. Nothing else may touch tensors before that.
        """
        self._run(self._before)
        self._start()
        return self._end

    def _end(self) -> Outputs:
        self._run(self._after)
        return self._results

    def _run(self, works: Sequence[Work]) -> None:
        with torch.inference_mode(), self._torch_alone():
            for one in works:
                one()

    @contextmanager
    def _torch_alone(self) -> Iterator[None]:
        """Let torch compute in this thread: its own threads spin on the cores of the team."""
        threads = torch.get_num_threads()
        if not self.compiled or threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)

    def share(self) -> None:
        """Let later recordings use the memory of the results."""
        lasting = self._arena.lasting
        self._results = tuple(None if one is None else lasting(one) for one in self._results)


class _Tape:
    """Compiled operations in order; without a library there are none."""

    def __init__(self) -> None:
        self._code = None if reasons() else library()
        if self._code is not None:
            self.address = self._code.tape()
            weakref.finalize(self, self._code.free, self.address).atexit = False

    def __len__(self) -> int:
        return 0 if self._code is None else self._code.tape_size(self.address)

    def begin(self, kept: list[object]) -> None:
        """Let compiled operations be put on this tape, and their tensors into a list."""
        if self._code is not None:
            self._code.record(self.address)
            keep_in(kept)

    def end(self) -> None:
        """End that."""
        if self._code is not None:
            self._code.record(None)
            keep_in(None)

    def play(self, row: range) -> Work:
        """Return what runs a row of entries."""
        assert self._code is not None
        return partial(self._code.play, self.address, row.start, row.stop)

    def beside(self, row: range) -> tuple[Work, Work]:
        """Return what starts a row of entries beside the caller, and what ends it."""
        assert self._code is not None
        start = partial(self._code.start, self.address, row.start, row.stop)
        return start, self._code.finish


class _Recorder(TorchDispatchMode):
    """Writes down what runs.

    Attributes:
        work: Calls of a replay.
        kept: What compiled operations know by its address and is not in the arena.
        tape: Has the compiled operations.
        compiled: How many of them are in `work`.
    """

    def __init__(self, arena: Arena) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: list[Work] = []
        self.kept: dict[int, object] = {}
        self.tape = _Tape()
        self.compiled = 0
        self._rows: dict[int, range] = {}  # of compiled operations, by their place in `work`
        self._arena = arena
        self._passing: list[object] = []
        self.tape.begin(self._passing)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that nothing here meets torch's compiler: to load it takes two seconds and 75 MB."""
        return False

    def close(self) -> None:
        """Write no more."""
        self.tape.end()
        self._passing.clear()

    def note_compiled(self) -> None:
        """Write down the compiled operations that ran since the last call."""
        self._let_go()
        end = len(self.tape)
        if end > self.compiled:
            row = range(self.compiled, end)
            self._rows[len(self.work)] = row
            self.work.append(self.tape.play(row))
            self.compiled = end

    def longest(self) -> tuple[int, Work, Work]:
        """Return where most compiled operations are in `work`, what starts and what ends them.

        Where there are none, behind everything, that is nothing.
        """
        if not self._rows:
            return len(self.work), _nothing, _nothing
        at = max(self._rows, key=lambda place: len(self._rows[place]))
        return at, *self.tape.beside(self._rows[at])

    def _note(self, work: Work) -> None:
        self.note_compiled()
        self.work.append(work)

    def _let_go(self) -> None:
        """Keep what compiled operations were given, but memory of the arena: that may be reused."""
        for one in tree_leaves(self._passing):
            if not isinstance(one, torch.Tensor) or not self._arena.holds(one):
                self.kept[id(one)] = one
        self._passing.clear()

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - torch's OpOverload
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        kwargs = kwargs or {}
        self._let_go()
        with self:  # what an operation is made of is recorded instead of it
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        known = traits_of(func)
        if known.against is not None:
            raise _refusal(func, known.against)
        if func is torch.ops.aten.index.Tensor:
            _check_indices(func, args[1])
        written = known.written(args, kwargs)
        if known.renames:
            return func(*args, **kwargs)
        if written:
            return self._write(func, args, kwargs, written)
        return self._compute(func, args, kwargs)

    def _write(
        self,
        func: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: list[torch.Tensor],
    ) -> Any:  # noqa: ANN401
        """Run an operation that fills its arguments; it is called again as it is."""
        before = [_form(one) for one in written]
        result = func(*args, **kwargs)
        if before != [_form(one) for one in written]:
            raise _refusal(func, "it changes the size of a tensor that it writes to")
        strangers = _without(_tensors(result), (args, kwargs))
        if strangers:
            raise _refusal(func, "it both writes to its arguments and makes new tensors")
        self._note(partial(func, *self._lasting(args), **self._lasting(kwargs)))
        return result

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        """Run an operation that makes tensors; they are moved to where replays leave them."""
        known = traits_of(func)
        result = func(*args, **kwargs)
        made = _tensors(result)
        if any(one.device.type != "cpu" for one in made):
            raise _refusal(func, f"it takes a tensor to another device, {made[0].device}")
        if not known.copies:
            made = _without(made, (args, kwargs))
        if not made:
            return result
        places = {id(one): self._arena.like(one) for one in made}
        if not known.allocates:
            targets = [self._arena.lasting(places[id(one)]) for one in made]
            self._note(self._refill(func, args, kwargs, made, targets))
        return tree_map_only(torch.Tensor, lambda one: places.get(id(one), one), result)

    def _refill(
        self,
        func: Any,  # noqa: ANN401
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        made: list[torch.Tensor],
        targets: list[torch.Tensor],
    ) -> Work:
        """Return what fills the targets with an operation's results, and fill them."""
        known = traits_of(func)
        args, kwargs = self._lasting(args), self._lasting(kwargs)
        if known.copies:
            targets[0].copy_(made[0])
            return partial(targets[0].copy_, args[0])
        if known.out is not None and not known.is_random and len(made) == len(known.out[1]):
            operation, names = known.out
            takes = {one.name for one in operation._schema.arguments}
            given = {name: value for name, value in kwargs.items() if name in takes}
            call = partial(operation, *args, **given, **dict(zip(names, targets, strict=True)))
            call()
            if all(map(_same_bits, made, targets)):
                return call
        again = partial(_compute_into, partial(func, *args, **kwargs), targets)
        for one, target in zip(made, targets, strict=True):
            target.copy_(one)
        return again

    def _lasting(self, tree: Any) -> Any:  # noqa: ANN401
        return tree_map_only(torch.Tensor, self._arena.lasting, tree)


class _NothingToHost(TorchFunctionMode):
    """Refuses what reads a tensor's elements and is no operation."""

    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        name = getattr(func, "__name__", "")
        if name in _TO_HOST and isinstance(args[0], torch.Tensor):
            raise DeviceError(
                f"Tensor.{name} cannot be recorded: it hands a tensor's elements to the host; "
                "set engine.graphs: false"
            )
        return func(*args, **(kwargs or {}))


def _compute_into(compute: Work, targets: list[torch.Tensor]) -> None:
    for target, one in zip(targets, _tensors(compute()), strict=True):
        target.copy_(one)


def _nothing() -> None:
    pass


def _refusal(func: Any, reason: str) -> DeviceError:  # noqa: ANN401
    return DeviceError(f"{func} cannot be recorded: {reason}; set engine.graphs: false")


def _check_indices(func: Any, indices: Iterable[torch.Tensor | None]) -> None:  # noqa: ANN401
    if any(one is not None and one.dtype in {torch.bool, torch.uint8} for one in indices):
        raise _refusal(func, "with a mask the size of its result depends on what that holds")


def _tensors(tree: Any) -> list[torch.Tensor]:  # noqa: ANN401
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def _without(tensors: list[torch.Tensor], others: Any) -> list[torch.Tensor]:  # noqa: ANN401
    """Return those that stand in other memory than all tensors of a tree."""
    known = {storage_of(one) for one in _tensors(others)}
    return [one for one in tensors if storage_of(one) not in known]


def _form(tensor: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]]:
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def _same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    bits = (one.reshape(-1).view(torch.uint8) for one in (first, second))
    return torch.equal(*cast("tuple[torch.Tensor, torch.Tensor]", tuple(bits)))
