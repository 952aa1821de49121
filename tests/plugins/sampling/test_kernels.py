"""The kernels beside the choice in torch, interpreted or on a GPU."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from camshaft.plugins.sampling import choose as torch_choice
from camshaft.plugins.sampling.blocks import first_maximum
from camshaft.plugins.sampling.params import Cuts, Method, RowParams, Tables
from camshaft.plugins.sampling.random import uniforms

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.sampling.kernels.launch import Chosen, choose
from camshaft.plugins.sampling.kernels.masses import LIST
from camshaft.plugins.sampling.kernels.penalties import count_tokens, penalise
from camshaft.testing.sampling_play import row_context

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HOST = pytest.param(
    "cpu",
    marks=[
        pytest.mark.interpreted,
        pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"),
    ],
)
devices = pytest.mark.parametrize("device", [HOST, pytest.param("cuda", marks=pytest.mark.gpu)])
WIDE = LIST.value + 600


@pytest.fixture(autouse=True)
def loops_with_bounds_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let triton 3.6's interpreter count to a loaded number under numpy 2.4 and newer."""
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: interpreter._LangPatchScope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def tables(
    rows: int,
    vocab: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Tables:
    """Return parameters of `rows` slots, alike but for their random numbers."""
    floats = torch.tensor([[temperature], [top_p], [min_p]]).repeat(1, rows)
    integers = torch.zeros((3, rows), dtype=torch.int64)
    integers[0] = torch.arange(rows) * 0x1234567890ABCDEF + 5
    integers[1], integers[2] = torch.arange(rows), top_k or vocab
    return Tables(floats, integers)


def random_logits(rows: int, vocab: int, spread: float = 3.0) -> torch.Tensor:
    rng = np.random.default_rng([rows, vocab])
    return torch.tensor(rng.normal(0, spread, (rows, vocab)), dtype=torch.float32)


def chosen(
    method: Method,
    logits: torch.Tensor,
    own: Tables,
    device: str,
    *,
    offsets: torch.Tensor | None = None,
) -> Chosen:
    slots = torch.arange(len(logits), device=device)
    there = Tables(*(one.to(device) for one in own))
    offsets = None if offsets is None else offsets.to(device)
    found = choose(method, logits.to(device), slots, offsets, there, advance=False)
    return Chosen(*(one.cpu() for one in found))


@devices
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "vocab"), [(1, 50), (3, 4099), (10, 8192)])
def test_greedy_is_the_lowest_of_the_best_ids(
    rows: int, vocab: int, dtype: str, device: str
) -> None:
    logits = random_logits(rows, vocab).to(getattr(torch, dtype))
    logits[:, -1] = logits[:, vocab // 2] = logits.amax(dim=1)
    expected = first_maximum(logits.float())[1]
    assert torch.equal(chosen(Method.GREEDY, logits, tables(rows, vocab), device).tokens, expected)


@devices
def test_zeros_of_both_signs_are_a_tie(device: str) -> None:
    logits = torch.tensor([[-1.0, -0.0, 0.0], [-1.0, 0.0, -0.0]])
    found = chosen(Method.GREEDY, logits, tables(2, 3), device)
    assert found.tokens.tolist() == [1, 1]
    cut = chosen(Method.DRAW_CUT, logits, tables(2, 3, top_k=1), device)
    assert cut.tokens.tolist() == [1, 1]


@devices
@pytest.mark.parametrize("method", list(Method))
def test_faults_are_reported_and_get_token_0(method: Method, device: str) -> None:
    logits = random_logits(5, 700)
    logits[0, 699], logits[1, 3], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[3, 1:] = -torch.inf
    found = chosen(method, logits, tables(5, 700, top_p=0.9), device)
    assert found.finite.tolist() == [False, False, False, True, True]
    assert found.tokens[:4].tolist() == [0, 0, 0, 0]


CASES = [
    {},
    {"temperature": 0.6},
    {"min_p": 0.05},
    {"top_k": 1},
    {"top_k": 40},
    {"top_p": 0.9},
    {"top_p": 1e-6},
    {"top_p": 0.999},
    {"top_p": 0.9, "min_p": 0.1},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    {"temperature": 1.4, "top_k": 700, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 1e-3, "top_k": 5, "top_p": 0.5},
]
FLAT = [
    {},
    {"temperature": 1e30},
    {"top_p": 0.97},
    {"top_k": LIST.value + 100},
    {"top_k": LIST.value + 300, "top_p": 0.98, "min_p": 1e-3},
]


@devices
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_are_those_of_the_choice_in_torch(
    case: dict[str, float], dtype: str, device: str
) -> None:
    rows = 64 if device == "cuda" else 10  # interpreting is slow
    compare(random_logits(rows, 2500).to(getattr(torch, dtype)), case, device)


@devices
@pytest.mark.parametrize("case", FLAT, ids=str)
def test_more_candidates_than_the_list_holds_give_the_same_draws(
    case: dict[str, float], device: str
) -> None:
    compare(random_logits(3, WIDE, spread=0.5), case, device)


@devices
def test_equal_logits_are_kept_by_the_lowest_ids(device: str) -> None:
    compare(torch.zeros(6, 1000), {"top_k": 10}, device)
    compare(torch.zeros(2, WIDE), {"top_p": 0.5}, device)
    found = chosen(Method.DRAW_CUT, torch.zeros(40, 1000), tables(40, 1000, top_k=10), device)
    assert set(found.tokens.tolist()) == set(range(10))


def compare(logits: torch.Tensor, case: dict[str, float], device: str) -> None:
    """Assert that tokens are equal where rounding cannot tell: at 1e-6 around the uniform."""
    rows, vocab = logits.shape
    own = tables(rows, vocab, **case)  # type: ignore[arg-type]
    method = (
        Method.DRAW if own.integers[2, 0] == vocab and own.floats[1, 0] == 1 else Method.DRAW_CUT
    )
    found = chosen(method, logits, own, device).tokens
    uniform = uniforms(own.integers[0], own.integers[1])
    low, exact, high = (
        in_torch(method, logits.float(), own, (uniform + shift).clamp(0, 1 - 1e-9))
        for shift in (-1e-6, 0, 1e-6)
    )
    assert ((low <= found) & (found <= high)).all(), (found - exact).abs().max()
    assert int((found != exact).sum()) <= 1


def in_torch(
    method: Method, logits: torch.Tensor, own: Tables, uniform: torch.Tensor
) -> torch.Tensor:
    temperature, top_p, min_p = own.floats
    params = RowParams(temperature, top_p, min_p, own.integers[2], uniform)
    every = Cuts(top_k=True, top_p=True, min_p=True)
    draw = torch_choice.draw if method is Method.DRAW else torch_choice.draw_cut
    return draw(logits, logits.amax(dim=1), params, every)


@devices
def test_rows_of_every_sort_share_a_launch(device: str) -> None:
    logits = random_logits(12, 2500)
    cases = [{}, {"temperature": 0.0}, {"top_k": 7}, {"top_p": 0.8}]
    each = [tables(12, 2500, **cases[row % 4]) for row in range(12)]  # type: ignore[arg-type]
    mixed = Tables(
        torch.stack([one.floats[:, row] for row, one in enumerate(each)], dim=1),
        torch.stack([one.integers[:, row] for row, one in enumerate(each)], dim=1),
    )
    found = chosen(Method.DRAW_CUT, logits, mixed, device).tokens
    for row, one in enumerate(each):
        alone = Tables(
            one.floats[:, row : row + 1].contiguous(), one.integers[:, row : row + 1].contiguous()
        )
        assert found[row] == chosen(Method.DRAW_CUT, logits[row : row + 1], alone, device).tokens


@devices
def test_rows_may_lie_apart_and_have_offsets(device: str) -> None:
    whole = random_logits(4, 900)
    own = tables(4, 700)
    expected = chosen(Method.DRAW, whole[:, :700].contiguous(), own, device)
    assert torch.equal(chosen(Method.DRAW, whole[:, :700], own, device).tokens, expected.tokens)
    later = Tables(own.floats, own.integers + torch.tensor([[0], [3], [0]]))
    offsets = torch.full((4,), 3)
    shifted = chosen(Method.DRAW, whole[:, :700], own, device, offsets=offsets)
    assert torch.equal(shifted.tokens, chosen(Method.DRAW, whole[:, :700], later, device).tokens)


@devices
@pytest.mark.parametrize("method", list(Method))
def test_the_tokens_of_a_slot_are_counted_once_where_asked(method: Method, device: str) -> None:
    own = Tables(*(one.to(device) for one in tables(5, 50)))
    slots = torch.tensor([2, 0, 4], device=device)
    logits = random_logits(3, 50).to(device)
    choose(method, logits, slots, None, own, advance=True)
    assert own.integers[1].tolist() == [1, 1, 3, 3, 5]
    choose(method, logits, slots, None, own, advance=False)
    assert own.integers[1].tolist() == [1, 1, 3, 3, 5]


@devices
def test_penalties_change_what_was_seen(device: str) -> None:
    strength = torch.tensor([[0.0, 1.0], [0.0, 0.5], [1.0, 2.0]], device=device)
    cells = torch.tensor([[9] * 4, [0, 1, 4, 0]], dtype=torch.int32, device=device)
    logits = torch.tensor([[1.0, 2.0, -3.0, 4.0]] * 2, dtype=torch.bfloat16, device=device)
    out = torch.empty(2, 4, device=device)
    penalise(logits, out, torch.arange(2, device=device), None, strength, cells)
    # seen in the prompt: 2 / 2; twice in the output: -3 * 2 - 2 * 0.5 - 1
    assert out.tolist() == [[1.0, 2.0, -3.0, 4.0], [1.0, 1.0, -8.0, 4.0]]


@devices
def test_drafts_before_a_row_are_penalised(device: str) -> None:
    strength = torch.tensor([[1.0], [0.0], [1.0]], device=device)
    cells = torch.zeros(1, 4, dtype=torch.int32, device=device)
    logits = torch.zeros(3, 4, device=device)
    rows = row_context([0], [[2, 3]], max_drafts=2, device=device)
    penalise(
        logits, logits, torch.zeros(3, dtype=torch.int64, device=device), rows, strength, cells
    )
    assert logits.tolist() == [[0, 0, 0, 0], [0, 0, -1, 0], [0, 0, -1, -1]]


@devices
def test_only_tokens_that_count_are_counted(device: str) -> None:
    cells = torch.zeros(2, 4, dtype=torch.int32, device=device)
    tokens = torch.tensor([[1, 1, 3], [2, 3, 3]], device=device)
    count_tokens(
        tokens, torch.tensor([2, 1], device=device), torch.tensor([1, 0], device=device), cells
    )
    assert cells.tolist() == [[0, 0, 2, 0], [0, 4, 0, 0]]


@pytest.mark.gpu
@pytest.mark.parametrize("method", list(Method))
@pytest.mark.parametrize("rows", [1, 40])
def test_a_replayed_graph_chooses_for_what_its_tensors_hold_then(method: Method, rows: int) -> None:
    vocab = 30_000
    case = {"top_p": 0.9} if method is Method.DRAW_CUT else {}
    own = Tables(*(one.cuda() for one in tables(rows + 3, vocab, **case)))  # type: ignore[arg-type]
    logits = random_logits(rows, vocab).cuda().bfloat16()
    slots = torch.arange(rows, device="cuda")
    choose(method, logits, slots, None, own, advance=False)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = choose(method, logits, slots, None, own, advance=True)
    for turn in range(5):
        logits.copy_(torch.randn(rows, vocab) * 3)
        slots.copy_(torch.randperm(rows + 3)[:rows])
        own.floats[0, turn % rows] = 0.3 + turn / 3
        before = Tables(own.floats, own.integers.clone())
        expected = choose(method, logits, slots, None, before, advance=False)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found.tokens, expected.tokens)
        assert torch.equal(found.finite, expected.finite)
        before.integers[1, slots] += 1
        assert torch.equal(own.integers, before.integers)
