from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from camshaft.contracts.attention import AttentionBackend, AttentionSpec
from camshaft.contracts.kv_quant import KVQuant
from camshaft.errors import PluginError
from camshaft.facts import Capability, DeviceFacts
from camshaft.plugins.attention.components import FlashAttnSettings
from camshaft.plugins.attention.flash_attn import VERSION_2, VERSION_3, FlashAttnAttention
from camshaft.plugins.attention.libraries import is_installed, load
from camshaft.testing.attention import AttentionContract
from tests.plugins.attention.published import flash_attn_2, flash_attn_3, installed, sums_of

FACTS = DeviceFacts(
    "cuda", "test", 2**30, frozenset(), frozenset({Capability.CUDA}), architecture="sm_90"
)
PRESENT = is_installed(VERSION_2) or is_installed(VERSION_3)


@pytest.fixture
def version_2() -> Iterator[None]:
    with installed(flash_attn_2(), absent=(VERSION_3,)):
        yield


@pytest.fixture
def version_3() -> Iterator[None]:
    with installed(flash_attn_3()):
        yield


class FlashAttnContract(AttentionContract):
    backend = FlashAttnAttention
    facts = FACTS
    dtype = "float16"
    tolerance = 5e-3

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return FlashAttnAttention(FlashAttnSettings(), spec, kv_quant)

    def test_several_pages_are_read(self) -> None:
        self.check(self.scene([(511, 1), (3, 1), (250, 70), (0, 257)], window=200))


class AsPublished(FlashAttnContract):
    """Against stand-ins that check what the library is given."""

    @pytest.mark.parametrize(("window", "soft_cap"), [(0, 0.0), (5, 0.7)])
    def test_the_log_of_the_sum_is_returned(self, window: int, soft_cap: float) -> None:
        got, wanted = sums_of(
            self.scene([(130, 1), (8, 1), (30, 12), (0, 9)], window=window, soft_cap=soft_cap)
        )
        torch.testing.assert_close(got, wanted, atol=5e-3, rtol=0)

    def test_a_recorded_step_reads_the_lengths_of_each_replay(self) -> None:
        scene = self.scene([(300, 1), (7, 1)])
        meta = scene._meta([(0, 300, 1), (1, 7, 1)])
        truth = meta.context.clone()
        meta.context.zero_()
        meta.host_context = np.array([511, 511], dtype=np.int32)  # the longest, as a capture says
        meta.plan = scene.backend.plan(meta, capture=True)
        k, v = (torch.cat([one[-1:] for one in side]) for side in (scene.keys, scene.values))
        q, out = torch.cat(scene.queries), torch.empty(2, 6, 16, dtype=torch.float16)
        for context in (torch.zeros_like(truth), truth):  # the recording, then a replay
            meta.context.copy_(context)
            scene.backend.forward(scene.layer, q, k, v, scene.fields, meta, out)
        for got, wanted in zip(out.split(1), scene.expected(), strict=True):
            torch.testing.assert_close(got.double(), wanted, atol=5e-3, rtol=0)


@pytest.mark.usefixtures("version_2")
class TestVersion2AsPublished(AsPublished):
    def spec(self, **changes: object) -> AttentionSpec:
        return super().spec(**{"page_tokens": 256, **changes})


@pytest.mark.usefixtures("version_3")
class TestVersion3AsPublished(AsPublished):
    pass


@pytest.mark.gpu
@pytest.mark.skipif(not PRESENT, reason="flash-attn is not installed")
class TestFlashAttn(FlashAttnContract):
    device = "cuda"

    def spec(self, **changes: object) -> AttentionSpec:
        return super().spec(**{"page_tokens": 256, **changes})


@pytest.mark.usefixtures("version_2")
def test_version_2_says_which_pages_it_reads() -> None:
    spec = AttentionSpec(4, 2, 64, 64, "float16", 16)
    assert FlashAttnAttention.supports(spec, FACTS) == [
        "version 2 of flash-attn reads pages of 256 tokens or a multiple; set cache.page_tokens, "
        "which is 16"
    ]


@pytest.mark.usefixtures("version_3")
def test_version_3_reads_pages_of_any_size_and_heads_up_to_256() -> None:
    spec = AttentionSpec(4, 2, 260, 260, "float16", 16)
    assert FlashAttnAttention.supports(spec, FACTS) == [
        "heads have 260 elements, not a multiple of 8 up to 256"
    ]


@pytest.mark.skipif(PRESENT, reason="flash-attn is installed")
def test_an_absent_library_is_a_reason_with_its_cure() -> None:
    spec = AttentionSpec(4, 2, 64, 64, "float16", 256)
    assert FlashAttnAttention.supports(spec, FACTS) == [
        "flash-attn is not installed; `pip install flash-attn --no-build-isolation`"
    ]


def test_a_library_that_does_not_import_is_named() -> None:
    with pytest.raises(PluginError, match="attention 'flash_attn': no_such_module does not import"):
        load("no_such_module", "flash_attn")
