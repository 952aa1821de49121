"""Events of small traces, as the profiler writes them, and the parts that they are told by."""

from __future__ import annotations

from typing import Any

import pytest

from camshaft.plugins.lab.trace import Operation, Run, operations, parts_of_runs


def event(cat: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    shape = {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1}
    return {**shape, **more}


def part(name: str, ts: float, dur: float) -> dict[str, Any]:
    return event("user_annotation", f"part: {name}", ts, dur)


def launch(name: str, ts: float, correlation: int, cat: str = "cuda_runtime") -> dict[str, Any]:
    return event(cat, name, ts, 1, args={"correlation": correlation})


def kernel(name: str, ts: float, dur: float, correlation: int) -> dict[str, Any]:
    return event("kernel", name, ts, dur, pid=0, tid=7, args={"correlation": correlation})


def test_a_kernel_belongs_to_the_innermost_range_around_its_launch() -> None:
    trace = [
        part("qkv", 0, 10),
        part("norm", 1, 3),
        launch("cudaLaunchKernel", 2, 1),
        launch("cuLaunchKernelEx", 6, 2, "cuda_driver"),
        kernel("a", 100, 5, 1),
        kernel("b", 110, 7, 2),
    ]
    assert operations(trace) == [Operation("a", "norm", 5), Operation("b", "qkv", 7)]


def test_a_kernel_outside_of_all_ranges_is_something_else() -> None:
    trace = [
        part("qkv", 0, 10),
        launch("cudaLaunchKernel", 10, 1),
        kernel("a", 100, 5, 1),
        kernel("unknown launch", 120, 5, 9),
    ]
    assert [one.part for one in operations(trace)] == ["other", "other"]


def test_a_range_of_another_thread_does_not_count() -> None:
    trace = [
        {**part("qkv", 0, 10), "tid": 2},
        launch("cudaLaunchKernel", 5, 1),
        kernel("a", 100, 5, 1),
    ]
    assert operations(trace)[0].part == "other"


def test_decoding_requests_of_a_mixed_step_are_told_by_the_kernel() -> None:
    trace = [
        part("attention prefill", 0, 10),
        launch("cuLaunchKernel", 2, 1),
        launch("cuLaunchKernel", 4, 2),
        kernel("decode_kernel", 100, 5, 1),
        kernel("prefill_kernel", 110, 7, 2),
    ]
    assert [one.part for one in operations(trace)] == ["attention decode", "attention prefill"]


def test_kernels_of_a_graph_are_taken_in_the_order_of_the_stream() -> None:
    trace = [
        part("sampling", 0, 10),
        launch("cudaGraphLaunch", 2, 1),
        kernel("nvjet_b", 120, 6, 1),
        kernel("decode_kernel", 110, 5, 1),
        kernel("nvjet_a", 100, 4, 1),
    ]
    assert operations(trace) == [
        Operation("nvjet_a", "qkv", 4),
        Operation("decode_kernel", "attention decode", 5),
        Operation("nvjet_b", "out", 6),
    ]


def test_copies_are_counted_too() -> None:
    trace = [
        kernel("a", 0, 5, 1),
        event("gpu_memcpy", "Memcpy DtoH", 5, 2, args={"correlation": 3}),
        {"ph": "i", "cat": "kernel", "name": "no duration", "ts": 1},
    ]
    assert operations(trace)[1] == Operation("Memcpy DtoH", "copies", 2)


def test_on_a_cpu_an_operation_has_the_time_that_its_callees_leave() -> None:
    trace = [
        part("norm", 0, 20),
        event("cpu_op", "aten::rms_norm", 1, 10),
        event("cpu_op", "aten::mul", 3, 4),
        event("cpu_op", "aten::add", 30, 2),
    ]
    assert operations(trace) == [
        Operation("aten::rms_norm", "norm", 6),
        Operation("aten::mul", "norm", 4),
        Operation("aten::add", "other", 2),
    ]


def parts_of_a_step(names: list[str]) -> list[str]:
    return parts_of_runs([Run(names)])


LAYER = ["qkv", "rope", "attention decode", "attention decode", "out"]


def test_linears_of_separate_kernels_are_told_by_their_neighbours() -> None:
    names = [
        *("index_elementwise_kernel", "_rms_norm"),
        *("nvjet_splitK", "void cublasLt::splitKreduce_kernel<32>", "prepare_kernel"),
        *("decode_kernel", "merge_kernel", "nvjet", "_rms_norm", "nvjet", "_gated", "nvjet"),
        *("_rms_norm", "nvjet", "prepare_kernel", "decode_kernel", "merge_kernel", "nvjet"),
        *("_rms_norm", "nvjet", "_gated", "nvjet_splitK", "cublasLt::splitKreduce_kernel"),
        *("_rms_norm", "nvjet", "elementwise_kernel", "choose_kernel", "merge_norms"),
    ]
    assert parts_of_a_step(names) == [
        *("other", "norm", "qkv", *LAYER, "norm", "gate_up", "activation", "down"),
        *("norm", *LAYER, "norm", "gate_up", "activation", "down", "down"),
        *("norm", "head", "sampling", "sampling", "sampling"),
    ]


def test_linears_with_norm_and_activation_inside_are_told_by_their_order() -> None:
    layer = ["_one_row", "prepare_kernel", "decode_kernel", "merge_kernel"] + ["_one_row"] * 3
    names = ["gather", *layer, *layer, "_rms_norm", "_one_row", "choose_kernel"]
    own = [*LAYER, "gate_up", "down"]
    assert parts_of_a_step(names) == ["other", *own, *own, "norm", "head", "sampling"]


@pytest.mark.parametrize("name", ["flash_fwd_splitkv_kernel<cutlass>", "cudnn_sdpa_sm90_wgmma"])
def test_attention_of_libraries_is_no_linear(name: str) -> None:
    assert parts_of_a_step(["_rms_norm", "nvjet", name, "nvjet"])[2:] == [
        "attention prefill",
        "out",
    ]


def test_a_short_step_with_rotation_in_the_decode_kernel_is_told_too() -> None:
    layer = ["_one_row", "newest_kernel"] + ["_one_row"] * 3
    assert parts_of_a_step([*layer, *layer, "_one_row", "tops_kernel"]) == [
        *("qkv", "attention decode", "out", "gate_up", "down") * 2,
        *("head", "sampling"),
    ]


def test_pieces_of_a_step_are_told_by_what_runs_between_them() -> None:
    piece = ["nvjet", "_rms_norm", "nvjet", "_gated", "nvjet", "_rms_norm", "nvjet"]
    step = [
        Run(["embed"], "embed"),
        Run(["_rms_norm", "nvjet", "prepare_kernel"], replay=1),
        Run(["cudnn_sdpa"], "attention prefill"),
        Run([*piece, "prepare_kernel"], replay=2),
        Run(["cudnn_sdpa"], "attention prefill"),
        Run(piece, replay=3),
        Run(["choose_kernel"], "sampling"),
    ]
    rest = ["out", "norm", "gate_up", "activation", "down", "norm"]
    own = [
        *("embed", "norm", "qkv", "rope", "attention prefill"),
        *(*rest, "qkv", "rope", "attention prefill", *rest, "head", "sampling"),
    ]
    assert parts_of_runs(step * 2) == own * 2
