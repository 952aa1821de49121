from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from camshaft.contracts.attention import AttentionBackend, AttentionLayer, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.attention.components import FlexSettings
from camshaft.plugins.attention.flex import FlexAttention, ScoreMod, block_mask
from camshaft.plugins.attention.flex_kernel import compiled
from camshaft.plugins.quant.components import KVNoneSettings
from camshaft.plugins.quant.kv_none import PlainKV
from camshaft.testing.attention import CPU, AttentionContract, Scene
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import HYBRID, compose_toy
from tests.plugins.attention.published import sums_of

GPU = DeviceFacts("cuda", "a gpu", 2**30, frozenset(), frozenset({Capability.TRITON}))


class FlexContract(AttentionContract):
    backend = FlexAttention

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return FlexAttention(FlexSettings(), spec, kv_quant)

    @pytest.mark.parametrize("page_tokens", [1, 48, 256])
    def test_pages_of_every_size_are_read(self, page_tokens: int) -> None:
        self.check(self.scene([(300, 1), (20, 1), (70, 200)], page_tokens=page_tokens))

    def test_everything_at_once(self) -> None:
        scene = self.scene([(9, 1), (130, 7)], window=100, sinks=True, soft_cap=0.7, value_dim=32)
        self.check(scene)


class TestFlex(FlexContract):
    @pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (5, 0.7)])
    def test_the_log_of_the_sum_is_returned(self, window: int, soft_cap: float) -> None:
        got, wanted = sums_of(
            self.scene([(130, 1), (30, 12), (0, 9)], window=window, soft_cap=soft_cap)
        )
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=0)

    def test_sinks_are_in_the_sum(self) -> None:
        scene = self.scene([(5, 1), (0, 3)], sinks=True)
        got, without = sums_of(scene)
        assert scene.layer.sinks is not None
        torch.testing.assert_close(got, torch.logaddexp(without, scene.layer.sinks))


class TestFlexInBfloat16(FlexContract):
    dtype = "bfloat16"
    tolerance = 0.03


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # inductor's own
class TestFlexOnDevice(FlexContract):
    facts = GPU
    device = "cuda"


@pytest.mark.gpu
class TestFlexOnDeviceInBfloat16(TestFlexOnDevice):
    dtype = "bfloat16"
    tolerance = 0.03


class Bias(FlexAttention):
    """Scores fall with the distance, up to 8 tokens of it. What a third party writes."""

    def score_mod(self, layer: AttentionLayer, device: torch.device) -> ScoreMod | None:
        slopes = torch.arange(1, layer.heads + 1, device=device) / 10

        def mod(
            score: torch.Tensor,
            request: torch.Tensor,
            head: torch.Tensor,
            query: torch.Tensor,
            key: torch.Tensor,
        ) -> torch.Tensor:
            return score - slopes[head] * (query - key).clamp(max=8)

        return mod


def biased(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    before: int,
    slopes: torch.Tensor,
    most: int,
) -> torch.Tensor:
    """The same without flex: q [n, H, D] at positions `before` and on."""
    group = q.shape[1] // k.shape[1]
    keys, values = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    distance = before + torch.arange(len(q))[:, None] - torch.arange(len(k))
    scores = torch.einsum("nhd,shd->hns", q, keys) * q.shape[-1] ** -0.5
    scores = scores - slopes[:, None, None] * distance.clamp(max=most)
    weights = scores.masked_fill(distance < 0, float("-inf")).softmax(-1)
    return torch.einsum("hns,shd->nhd", weights, values)


def check_biased(backend: type[FlexAttention], slopes: torch.Tensor, most: int) -> None:
    scene = TestFlex().scene([(9, 1), (3, 1), (130, 6)])
    scene.backend = backend(FlexSettings(), scene.spec, PlainKV(KVNoneSettings()))
    sides = zip(scene.queries, scene.keys, scene.values, (9, 3, 130), strict=True)
    for got, one in zip(scene.run(), sides, strict=True):
        torch.testing.assert_close(got, biased(*one, slopes, most), atol=2e-5, rtol=0)


def test_a_subclass_changes_scores_by_positions_in_the_sequence() -> None:
    check_biased(Bias, torch.arange(1, 7) / 10, most=8)


def test_the_subclass_of_the_plugin_page_is_alibi() -> None:
    page = (Path(__file__).parents[3] / "docs" / "plugins.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n([^`]*FlexAttention.*?)^```", page, re.MULTILINE | re.DOTALL)
    defined: dict[str, type[FlexAttention]] = {}
    exec(code, defined)
    check_biased(defined["Alibi"], 2.0 ** (-8 / 6 * torch.arange(1, 7)), most=1000)


def test_an_engine_answers_as_with_the_reference() -> None:
    answers = []
    for name in ("reference", "flex"):
        changes: dict[str, dict[str, object]] = {
            "attention": {"use": name},
            "engine": {"deterministic": False},
        }
        engine = compose_toy(HYBRID, changes).engine
        for id_, prompt in (("a", tuple(range(60, 90))), ("b", (7, 8))):
            engine.submit(make_request(id_, prompt, max_tokens=12, ignore_eos=True))
        outputs = run_to_end(engine)
        answers.append([outputs[one].token_ids for one in ("a", "b")])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("window", [0, 1, 130, 300])
def test_a_block_mask_skips_exactly_the_blocks_that_no_query_sees(window: int) -> None:
    context = torch.tensor([0, 127, 128, 391])
    got = block_mask(context, queries=200, keys=640, window=window)
    wanted = create_block_mask(got.mask_mod, 4, None, 200, 640, device="cpu")
    assert torch.equal(got.to_dense(), wanted.to_dense())


def test_steps_of_many_shapes_compile_a_handful_of_kernels() -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    contract, counter = TestFlex(), CompileCounterWithBackend("eager")
    first = contract.scene([(1, 1)], soft_cap=2.0, window=90)
    backend = first.backend
    assert isinstance(backend, FlexAttention)
    backend.unfused = compiled(counter)
    steps = [
        [(1, 1)],
        [(300, 1), (4, 1), (9, 1)],
        [(700, 1), (9, 1)],
        [(0, 7)],
        [(500, 30)],
        [(0, 200)],
        [(90, 300)],
        [(256, 256), (0, 128)],
    ]
    for seed, sequences in enumerate(steps):
        contract.check(Scene(backend, first.spec, sequences, seed=seed))
    assert counter.frame_count == 4


def test_what_flex_cannot_do_is_said_in_words() -> None:
    spec = AttentionSpec(4, 2, 8, 8, "float32", 16, causal=False, deterministic=True)
    assert FlexAttention.supports(spec, CPU) == [
        "it is causal only",
        "its results depend on the batch",
    ]
    on_gpu = dataclasses.replace(spec, causal=True, deterministic=False)
    assert FlexAttention.supports(on_gpu, dataclasses.replace(GPU, capabilities=frozenset())) == [
        "torch compiles it with triton, which does not run on a gpu",
        "torch compiles it for heads of 16 elements or more",
    ]
