from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.errors import PluginError
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.attention.components import FlashInferSettings
from camshaft.plugins.attention.flashinfer import FlashInferAttention, page_places
from camshaft.plugins.attention.libraries import is_installed
from camshaft.testing.attention import AttentionContract
from tests.plugins.attention.published import fake_module, flashinfer, installed, sums_of

FACTS = DeviceFacts(
    "cuda", "test", 2**30, frozenset(), frozenset({Capability.CUDA}), architecture="sm_90"
)
SMALL = FlashInferSettings(workspace_bytes=1024)


@pytest.fixture
def library() -> Iterator[None]:
    with installed(flashinfer()):
        yield


class FlashInferContract(AttentionContract):
    backend = FlashInferAttention
    facts = FACTS
    dtype = "float16"
    tolerance = 5e-3
    settings = FlashInferSettings()

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return FlashInferAttention(self.settings, spec, kv_quant)

    def spec(self, **changes: object) -> AttentionSpec:
        return super().spec(**{"head_dim": 64, "value_dim": 64, **changes})

    def test_a_scale_of_the_models_own_is_kept(self) -> None:
        scene = self.scene([(9, 1), (4, 6)])
        scene.layer.scale = 0.3
        self.check(scene)

    def test_a_window_starts_behind_the_first_page(self) -> None:
        self.check(self.scene([(90, 1), (70, 20)], window=21))


@pytest.mark.usefixtures("library")
class TestFlashInferAsPublished(FlashInferContract):
    """Against a stand-in that checks what the library is given."""

    settings = SMALL

    @pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (5, 0.7)])
    def test_the_log_of_the_sum_has_the_natural_base(self, window: int, soft_cap: float) -> None:
        got, wanted = sums_of(
            self.scene([(130, 1), (8, 1), (30, 12), (0, 9)], window=window, soft_cap=soft_cap)
        )
        torch.testing.assert_close(got, wanted, atol=5e-3, rtol=0)


@pytest.mark.gpu
@pytest.mark.skipif(not is_installed("flashinfer"), reason="flashinfer is not installed")
class TestFlashInfer(FlashInferContract):
    device = "cuda"


def test_pages_are_found_in_the_table_row_by_row() -> None:
    counts, places = page_places(torch.tensor([1, 8, 9]).numpy(), page_tokens=4, width=5)
    assert counts.tolist() == [1, 2, 3]
    assert places.tolist() == [0, 5, 6, 10, 11, 12]


@pytest.mark.usefixtures("library")
def test_what_flashinfer_cannot_do_is_said_in_words() -> None:
    spec = AttentionSpec(4, 2, 32, 16, "float32", 16, sinks=True, causal=False, deterministic=True)
    old = DeviceFacts("cuda", "test", 2**30, frozenset(), architecture="sm_75")
    assert FlashInferAttention.supports(spec, old) == [
        "it computes in bfloat16 and float16, not in float32",
        "keys have 32 elements and values 16",
        "it has no attention sinks",
        "it is causal only",
        "its results depend on the batch",
        "it needs sm_80 or newer, and test is sm_75",
        "heads have 32 elements, not 64, 128 or 256",
    ]


@pytest.mark.skipif(is_installed("flashinfer"), reason="flashinfer is installed")
def test_an_absent_library_is_a_reason_with_its_cure() -> None:
    spec = AttentionSpec(4, 2, 64, 64, "float16", 16)
    assert FlashInferAttention.supports(spec, FACTS) == [
        "flashinfer is not installed; `pip install 'camshaft[flashinfer]'`"
    ]


@pytest.mark.usefixtures("library")
def test_quantised_pages_are_refused() -> None:
    class Int8(KVQuant):
        name = "int8"
        layout = write = read = None  # type: ignore[assignment]

    spec = AttentionSpec(4, 2, 64, 64, "float16", 16)
    with pytest.raises(PluginError, match="stored as 'int8'"):
        FlashInferAttention(SMALL, spec, Int8())


def test_a_bare_namespace_is_not_the_library() -> None:
    bare = fake_module("flashinfer")
    assert bare.__spec__ is not None
    bare.__spec__.origin = None
    with installed(bare):
        assert not is_installed("flashinfer")
