"""Launches of Triton kernels at a fraction of what they usually cost the host.

`kernel[grid](...)` finds out anew at each call what the compiled kernel depends on: with 20
arguments that takes about 80 us on a slow host, more than many a kernel runs for. A `KernelLaunch`
asks Triton once for each combination of what the compiled code may depend on, and from then on
calls the launcher that Triton built, with addresses in place of tensors.

A combination is finer than Triton's own, so it never runs code that Triton would not have chosen:

- types of all arguments, None being one; dtype of each tensor, and whether 16 divides its address;
- of each integer whether 16 divides it, and its value if that is below 2 or beyond 32 bits;
- the constants and options, which are fixed for one `KernelLaunch`, and the device.

Triton launches as usual what is not known well enough: arguments of other types, other versions of
Triton, other vendors' devices, the interpreter, and whenever a profiler or a debugging option wants
to see launches. Only then it is checked that tensors are on the device, and that globals which a
kernel reads have not changed.

Within `compiling_ahead` nothing is launched: what a launch would need is compiled in threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

VERSION = "3.6."
"""Of Triton, whose launchers are known."""

LAUNCHER_BEGINS_WITH = "iiiKKppOOOOOO"
"""How they describe arguments before the kernel's own: grid, stream, function, two flags, scratch
twice, metadata twice, hooks twice.
"""

MOST_INT = 2**31 - 1

_knowing = Lock()
_ahead: ContextVar[dict[object, object] | None] = ContextVar("compiling ahead", default=None)


class _Kinds(NamedTuple):
    """Which arguments are what, and what was compiled for them."""

    tensors: list[int]
    integers: list[int]
    compiled: dict[object, _Compiled | None]


class _Compiled(NamedTuple):
    """A kernel on a device.

    Attributes:
        launch: Triton's launcher for its signature.
        function: Handle of the code.
        before: Arguments between it and the kernel's own.
        kernel: Keeps the code loaded.
    """

    launch: Callable[..., object]
    function: int
    before: tuple[object, ...]
    kernel: object


class KernelLaunch:
    """A kernel with its constants and options; call it with a grid and all other arguments."""

    def __init__(self, kernel: Any, **constants: object) -> None:  # noqa: ANN401 - untyped there
        """Launch nothing yet.

        Args:
            kernel: What `triton.jit` made; its constexpr parameters stand behind all others.
            **constants: Constexpr parameters, and options such as `num_warps`.

        Raises:
            PluginError: Another parameter stands behind a constexpr one.
        """
        self._kernel = kernel
        self._constants = constants
        self._kinds: dict[tuple[type, ...], _Kinds | None] = {}
        # interpreted kernels do not say which parameters are constants
        places: list[int] | None = getattr(kernel, "constexprs", None)
        self._runtime = None if places is None else _runtime()
        self._arguments = len(kernel.arg_names) - len(places or ())
        if places and min(places) < self._arguments:
            raise PluginError(
                f"kernel '{kernel.__name__}' has parameters behind its constants. Move the "
                "constants to the end, or launch it with kernel[grid](...)."
            )
        self._after = (None,) * len(places or ())  # a launcher does not look at constants

    def __call__(self, grid: tuple[int, int, int], *args: object) -> None:
        """Launch on the current stream.

        Args:
            grid: Programs; with a zero among them nothing runs.
            *args: All parameters that are not constants, in order.
        """
        types = tuple(map(type, args))
        try:
            kinds = self._kinds[types]
        except KeyError:
            kinds = self._kinds.setdefault(types, self._sort(types))
        runtime = self._runtime
        if runtime is None or kinds is None or runtime.watched():
            self._through_triton(grid, args, kinds)
            return
        device = runtime.device()
        values: list[Any] = list(args)
        key = _replace(values, kinds, device)
        try:
            compiled = kinds.compiled[key]
        except KeyError:
            kinds.compiled[key] = _compiled(self._kernel[grid](*args, **self._constants))
            return
        if compiled is None:
            self._through_triton(grid, args, kinds)
            return
        stream, function, before = runtime.stream(device), compiled.function, compiled.before
        compiled.launch(*grid, stream, function, *before, *values, *self._after)

    def _through_triton(
        self, grid: tuple[int, int, int], args: tuple[object, ...], kinds: _Kinds | None
    ) -> None:
        asked = _ahead.get()
        if asked is None:
            self._kernel[grid](*args, **self._constants)
            return
        key = None if kinds is None else (id(kinds), _replace(list(args), kinds, 0))
        if key is None or key not in asked:  # Triton would make its own key anew, in 0.4 ms
            asked[key] = kinds  # kept, for its id not to become another one's
            self._kernel.warmup(*args, grid=grid, **self._constants)

    def _sort(self, types: tuple[type, ...]) -> _Kinds | None:
        """Sort arguments by type; None if there are types that are not understood."""
        tensors = [place for place, one in enumerate(types) if issubclass(one, torch.Tensor)]
        integers = [place for place, one in enumerate(types) if one is int]
        others = {one for one in types if not issubclass(one, torch.Tensor)}
        if len(types) != self._arguments or not others <= {int, float, type(None)}:
            return None
        return _Kinds(tensors, integers, {})


@cache
def launcher(kernel: Any, **constants: object) -> KernelLaunch:  # noqa: ANN401 - untyped there
    """Return the same `KernelLaunch` for the same kernel, constants and options."""
    return KernelLaunch(kernel, **constants)


def know_the_compiler() -> None:
    """Let Triton take its own fingerprint, a part of every key of its cache: it reads 400 MB.

    Once in a process; best in a thread, early. Whoever needs it then waits here for that thread:
    Triton would begin anew.
    """
    from triton.runtime.cache import triton_key

    with _knowing:
        triton_key()


@contextmanager
def compiling_ahead(threads: int) -> Iterator[None]:
    """Compile kernels that this thread calls, several at a time, and launch none of them.

    Whatever they would have written is void. They are compiled for the arguments that they are
    called with, as a launch would, and loaded; that is done when the context ends. Of a kernel that
    cannot be compiled the first launch tells.

    Args:
        threads: Most kernels at a time.
    """
    from triton import AsyncCompileMode

    pool = ThreadPoolExecutor(threads, initializer=same_device())
    with pool, AsyncCompileMode(_Loading(pool), ignore_errors=True):
        token = _ahead.set({})
        try:
            yield
        finally:
            _ahead.reset(token)


def compiles_only() -> bool:
    """Return whether this thread is within `compiling_ahead`: what it computes is void."""
    return _ahead.get() is not None


def same_device() -> Callable[[], None]:
    """Return what makes this thread's current device that of another one: each has its own."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    return lambda: None if device is None else torch.cuda.set_device(device)


class _Loading:
    """A pool in which a compiled kernel is loaded, too: a first launch would do it else.

    For that Triton also compiles a launcher for each new signature, in C.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, compile_one: Callable[[], Any]) -> Future[Any]:
        """Compile and load a kernel."""

        def compiled_and_loaded() -> Any:  # noqa: ANN401 - untyped there
            kernel = compile_one()
            _ = kernel.run  # loads when first read
            return kernel

        return self._pool.submit(compiled_and_loaded)


def _replace(values: list[Any], kinds: _Kinds, device: int) -> tuple[object, ...]:
    """Put addresses in place of tensors; return what the compiled code depends on."""
    key: list[object] = [device]
    for place in kinds.tensors:
        tensor = values[place]
        address = values[place] = tensor.data_ptr()
        key += (tensor.dtype, address & 15 == 0)
    for place in kinds.integers:
        number = values[place]
        if 1 < number <= MOST_INT:
            key.append(number & 15 == 0)
        else:  # hardly any different ones: zero, one, sizes beyond 32 bits
            key.append(("exactly", number))
    return tuple(key)


def _compiled(kernel: Any) -> _Compiled | None:  # noqa: ANN401 - untyped there
    """Return how to launch what Triton has just launched, or None if its launcher is unknown."""
    own: Any = getattr(kernel, "_run", None)  # none where it was compiled only
    if type(own).__name__ != "CudaLauncher":
        return None
    if own.global_scratch_size or own.profile_scratch_size:  # memory of each launch's own
        return None
    flags = (own.launch_cooperative_grid, own.launch_pdl)
    before = (*flags, None, None, kernel.packed_metadata, None, None, None)
    return _Compiled(own.launch, kernel.function, before, kernel)


class Runtime:
    """What is used of Triton, apart from kernels."""

    def __init__(self, knobs: Any, drivers: Any) -> None:  # noqa: ANN401 - untyped there
        """Keep Triton's options and its choice of a driver."""
        self._knobs = knobs
        self._drivers = drivers

    def device(self) -> int:
        """Return the current device."""
        device: int = self._drivers.active.get_current_device()
        return device

    def stream(self, device: int) -> int:
        """Return the handle of the device's current stream."""
        stream: int = self._drivers.active.get_current_stream(device)
        return stream

    def watched(self) -> bool:
        """Return whether launches are Triton's: seen by others, for debugging, compiled ahead."""
        options = self._knobs.runtime
        return (
            _calls(options.launch_enter_hook)
            or _calls(options.launch_exit_hook)
            or options.debug
            or self._knobs.compilation.instrumentation_mode != ""
            or compiles_only()
        )


def _calls(hook: Any) -> bool:  # noqa: ANN401 - untyped there
    """Return whether a hook does anything; Triton has chains of them, empty as a rule."""
    return hook is not None and bool(getattr(hook, "calls", True))


@cache
def _runtime() -> Runtime | None:
    """Return what the installed Triton offers; None if its launchers may be others."""
    import triton  # not every machine has it
    from triton.backends.nvidia import driver

    known = getattr(driver, "_BASE_ARGS_FORMAT", None) == LAUNCHER_BEGINS_WITH
    if not known or not triton.__version__.startswith(VERSION):
        return None
    return Runtime(triton.knobs, triton.runtime.driver)
