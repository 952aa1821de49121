from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Thread, get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from camshaft import kernel_launch
from camshaft.errors import PluginError
from camshaft.kernel_launch import (
    KernelLaunch,
    Runtime,
    compiles_only,
    compiling_ahead,
    launcher,
)


class CudaLauncher:
    """What Triton makes for a signature."""

    global_scratch_size = profile_scratch_size = 0
    launch_cooperative_grid, launch_pdl = False, True

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.launch = lambda *args: self.launched.append(args)


class Kernel:
    """A jitted function that compiles anew at each call through Triton."""

    __name__ = "kernel"
    constexprs = (4, 5)
    arg_names = ("x", "y", "size", "scale", "BLOCK", "EARLY")

    def __init__(self) -> None:
        self.own = CudaLauncher()
        self.through_triton = 0
        self.warmed: list[tuple[object, ...]] = []

    def warmup(self, *args: object, grid: tuple[int, ...], **constants: object) -> None:
        self.warmed.append((grid, *args, constants))

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: object, **constants: object) -> Any:
            self.through_triton += 1
            return SimpleNamespace(_run=self.own, packed_metadata=(4, 1, 0), function=77)

        return run


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a Triton with an idle profiler on device 3 in place of the installed one."""
    chain = SimpleNamespace(calls=[])
    knobs = SimpleNamespace(
        runtime=SimpleNamespace(launch_enter_hook=chain, launch_exit_hook=None, debug=False),
        compilation=SimpleNamespace(instrumentation_mode=""),
    )
    driver = SimpleNamespace(get_current_device=lambda: 3, get_current_stream=lambda device: 1000)
    runtime = Runtime(knobs, SimpleNamespace(active=driver))
    monkeypatch.setattr(kernel_launch, "_runtime", lambda: runtime)
    return SimpleNamespace(knobs=knobs, driver=driver)


X = torch.zeros(64)
assert X.data_ptr() % 16 == 0


@pytest.mark.usefixtures("triton")
def test_the_second_call_goes_to_the_launcher_with_addresses() -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    launch((5, 1, 1), X, None, 7, 0.5)
    assert (kernel.through_triton, kernel.own.launched) == (1, [])
    launch((6, 2, 1), X, None, 9, 1.5)
    grid, stream, function, flags = (6, 2, 1), 1000, 77, (False, True)
    scratch_and_metadata_and_hooks = (None, None, (4, 1, 0), None, None, None)
    own = (X.data_ptr(), None, 9, 1.5, None, None)
    assert kernel.own.launched == [
        (*grid, stream, function, *flags, *scratch_and_metadata_and_hooks, *own)
    ]
    assert kernel.through_triton == 1


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    "args",
    [
        (X.half(), X, 7, 0.5),
        (X, X[1:], 7, 0.5),
        (X, None, 7, 0.5),
        (X, X, 16, 0.5),
        (X, X, 1, 0.5),
        (X, X, 0, 0.5),
        (X, X, 2**31, 0.5),
        (X, X, 7, 5),
    ],
    ids=["dtype", "alignment", "None", "sixteens", "one", "zero", "64 bits", "type"],
)
def test_what_triton_may_compile_anew_for_is_told_apart(args: tuple[object, ...]) -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    launch((1, 1, 1), X, X, 7, 0.5)
    launch((1, 1, 1), *args)
    assert kernel.through_triton == 2
    launch((1, 1, 1), *args)
    assert len(kernel.own.launched) == 1


def test_devices_are_told_apart(triton: Any) -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    for triton.driver.get_current_device in (lambda: 3, lambda: 4):
        launch((1, 1, 1), X, X, 7, 0.5)
    assert kernel.through_triton == 2


@pytest.mark.parametrize("where", ["hook", "function", "debug", "instrumentation"])
def test_whoever_watches_launches_sees_them_all(triton: Any, where: str) -> None:
    kernel, runtime = Kernel(), triton.knobs.runtime
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    launch((1, 1, 1), X, X, 7, 0.5)
    match where:
        case "hook":
            runtime.launch_enter_hook.calls.append(print)
        case "function":
            runtime.launch_exit_hook = print
        case "debug":
            runtime.debug = True
        case _:
            triton.knobs.compilation.instrumentation_mode = "fpsan"
    launch((1, 1, 1), X, X, 7, 0.5)
    assert (kernel.through_triton, kernel.own.launched) == (2, [])


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("argument", [True, (X, X), "text"])
def test_arguments_of_other_types_go_through_triton(argument: object) -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    for _ in range(3):
        launch((1, 1, 1), X, argument, 7, 0.5)
    assert (kernel.through_triton, kernel.own.launched) == (3, [])


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("change", ["another launcher", "scratch", "compiled only"])
def test_unknown_launchers_are_left_to_triton(change: str) -> None:
    kernel = Kernel()
    match change:
        case "another launcher":
            kernel.own = SimpleNamespace(launch=None)  # type: ignore[assignment]
        case "scratch":
            kernel.own.global_scratch_size = 128
        case _:
            kernel.own = None  # type: ignore[assignment]
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    for _ in range(3):
        launch((1, 1, 1), X, X, 7, 0.5)
    assert kernel.through_triton == 3


def test_another_triton_launches_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_launch, "_runtime", lambda: None)
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    for _ in range(3):
        launch((1, 1, 1), X, X, 7, 0.5)
    assert (kernel.through_triton, kernel.own.launched) == (3, [])


@pytest.fixture
def compiles_in_threads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Stand in for Triton's mode of compiling; list the pools that it was given."""
    pools: list[Any] = []

    def mode(pool: Any, *, ignore_errors: bool) -> Any:
        assert ignore_errors  # the launch that needs it will tell
        pools.append(pool._pool)
        return nullcontext()

    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(AsyncCompileMode=mode))
    return pools


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize("was_launched", [False, True])
def test_what_is_compiled_ahead_is_not_launched(
    compiles_in_threads: list[Any], was_launched: bool
) -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    if was_launched:
        launch((1, 1, 1), X, X, 7, 0.5)
    with compiling_ahead(3):
        launch((5, 1, 1), X, X, 7, 0.5)
    assert kernel.warmed == [((5, 1, 1), X, X, 7, 0.5, {"BLOCK": 8, "EARLY": True})]
    assert (kernel.through_triton, kernel.own.launched) == (int(was_launched), [])
    assert [pool._max_workers for pool in compiles_in_threads] == [3]
    for _ in range(2):
        launch((1, 1, 1), X, X, 7, 0.5)
    assert (len(kernel.own.launched), len(kernel.warmed)) == (1 + was_launched, 1)


@pytest.mark.usefixtures("triton", "compiles_in_threads")
def test_each_combination_is_asked_for_once() -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    for _ in range(2):  # what an earlier one asked for may be forgotten
        with compiling_ahead(1):
            for size in (7, 9, 16, 32, 9):
                launch((size, 1, 1), X, None, size, 0.5)
    assert [args[3] for args in kernel.warmed] == [7, 16, 7, 16]


@pytest.mark.usefixtures("triton", "compiles_in_threads")
def test_a_launch_that_is_not_understood_is_asked_for_each_time() -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    with compiling_ahead(1):
        for _ in range(2):
            launch((1, 1, 1), (X, X), None, 7, 0.5)
    assert len(kernel.warmed) == 2


@pytest.mark.usefixtures("triton", "compiles_in_threads")
def test_a_thread_knows_whether_it_only_compiles() -> None:
    assert not compiles_only()
    with compiling_ahead(1), ThreadPoolExecutor(1) as pool:
        assert compiles_only()
        assert not pool.submit(compiles_only).result()
    assert not compiles_only()


def test_a_kernel_is_loaded_by_the_thread_that_compiled_it() -> None:
    threads: list[int] = []

    class Compiled:
        @property
        def run(self) -> None:
            threads.append(get_ident())

    def compile_one() -> Compiled:
        threads.append(get_ident())
        return Compiled()

    with ThreadPoolExecutor(1) as pool:
        kernel = kernel_launch._Loading(pool).submit(compile_one).result()
    assert isinstance(kernel, Compiled)
    assert len(threads) == 2
    assert threads[0] == threads[1] != get_ident()


@pytest.mark.usefixtures("triton", "compiles_in_threads")
def test_other_threads_launch_while_one_compiles_ahead() -> None:
    kernel = Kernel()
    launch = KernelLaunch(kernel, BLOCK=8, EARLY=True)
    with compiling_ahead(1):
        other = Thread(target=launch, args=((1, 1, 1), X, X, 7, 0.5))
        other.start()
        other.join()
    assert (kernel.through_triton, kernel.warmed) == (1, [])


@pytest.mark.usefixtures("triton")
def test_constants_stand_at_the_end() -> None:
    kernel = Kernel()
    kernel.constexprs = (0, 5)
    with pytest.raises(PluginError, match="kernel 'kernel' has parameters behind its constants"):
        KernelLaunch(kernel, x=8, EARLY=True)


@pytest.mark.usefixtures("triton")
def test_the_same_constants_share_a_launch() -> None:
    kernel = Kernel()
    assert launcher(kernel, BLOCK=8, EARLY=True) is launcher(kernel, BLOCK=8, EARLY=True)
    assert launcher(kernel, BLOCK=8, EARLY=True) is not launcher(kernel, BLOCK=16, EARLY=True)


@pytest.mark.parametrize(
    ("version", "begins", "known"),
    [("3.6.0", "iiiKKppOOOOOO", True), ("3.7.0", "iiiKKppOOOOOO", False), ("3.6.1", "iii", False)],
)
def test_only_launchers_that_are_known_are_called(
    monkeypatch: pytest.MonkeyPatch, version: str, begins: str, known: bool
) -> None:
    driver = SimpleNamespace(_BASE_ARGS_FORMAT=begins)
    nvidia = SimpleNamespace(driver=driver)
    fake = SimpleNamespace(__version__=version, knobs=None, runtime=SimpleNamespace(driver=None))
    for name, module in (("", fake), (".backends", None), (".backends.nvidia", nvidia)):
        monkeypatch.setitem(sys.modules, f"triton{name}", module)
    runtime = kernel_launch._runtime.__wrapped__()
    assert (runtime is not None) == known
