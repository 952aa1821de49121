"""`triton` and what shares its kernels, over quantised pages."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from camshaft.component import Settings
from camshaft.contracts.attention import AttentionBackend, AttentionSpec, Rope
from camshaft.contracts.kv_quant import KVQuant
from camshaft.errors import DeviceError, PluginError
from camshaft.facts import Capability, DeviceFacts
from camshaft.ops import rope_qk_norm
from camshaft.plugins.attention.components import InvariantSettings, TritonSettings
from camshaft.registry import Registry
from camshaft.testing.attention import AttentionContract, Scene

pytest.importorskip("triton", reason="triton is not installed")

from camshaft.plugins.attention import device as device_module
from camshaft.plugins.attention.dense_call import gather
from camshaft.plugins.attention.invariant import InvariantAttention
from camshaft.plugins.attention.triton import TritonAttention

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
on_cpu = pytest.mark.interpreted
# compiled and interpreted kernels cannot live in one process
on_gpu = pytest.mark.skipif(interpreted, reason="TRITON_INTERPRET=1 is set")
pytestmark = pytest.mark.usefixtures("loops_with_bounds_from_memory", "rounding_that_carries")


@pytest.fixture
def rounding_that_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let triton 3.6's interpreter round 124 to 128 in 8-bit floats, as devices do, not to 64."""
    if not interpreted:
        return
    from triton import language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(numbers: Any, kind: Any, target: Any, rounding: Any) -> Any:
        if kind == tl.float32 and target == tl.float8e4nv:
            codes = torch.from_numpy(numbers).to(torch.float8_e4m3fn)
            return codes.view(torch.uint8).numpy()
        return convert(numbers, kind, target, rounding)

    monkeypatch.setattr(interpreter, "_convert_float", converted)


FACTS = DeviceFacts(
    "cuda",
    "test",
    2**30,
    frozenset({"float32", "bfloat16", "float16"}),
    frozenset({Capability.TRITON}),
)
OF_EVERY_FORM = pytest.mark.parametrize("form", ["fp8", "int8", "int4"])


class Quantised(AttentionContract):
    backend: type[AttentionBackend] = TritonAttention
    facts = FACTS
    form = "int4"

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return TritonAttention(TritonSettings(), spec, kv_quant)


class Invariant(Quantised):
    backend = InvariantAttention

    def make(self, spec: AttentionSpec, kv_quant: KVQuant) -> AttentionBackend:
        return InvariantAttention(InvariantSettings(), spec, kv_quant)


def contract(form: str, dtype: str = "float16", device: str = "cpu") -> Quantised:
    """Return the contract of a form, without its tests."""
    made = Quantised()
    made.form, made.dtype, made.device, made.tolerance = form, dtype, device, 1e-2
    return made


def check_twins(made: Quantised, sequences: list[tuple[int, int]], **changes: Any) -> None:
    """Compare what `prepare` stores with the plain operations and the KVQuant."""
    scene = made.scene(sequences, **changes)
    meta = scene._meta([(index, *one) for index, one in enumerate(scene.sequences)])
    with_rope(scene)
    new = [
        torch.cat([one[before:] for one, (before, _) in zip(side, scene.sequences, strict=True)])
        for side in (scene.keys, scene.values)
    ]
    qkv = torch.cat([torch.cat(scene.queries), *new], dim=1).flatten(1)
    _, k, v = rope_qk_norm(qkv, meta.positions, scene.layer)
    kv_quant = scene.kv_quant
    assert kv_quant is not None
    wanted = {name: pages.clone() for name, pages in scene.fields.items()}
    kv_quant.write(wanted, meta.write_page, meta.write_offset, k, v, "heads_first")
    assert scene.backend.prepare(scene.layer, qkv, scene.fields, meta) is not None
    read = [
        one[meta.write_page.new_tensor(range(len(k))), :, meta.write_offset]
        for fields in (scene.fields, wanted)
        for one in kv_quant.read(fields, meta.write_page, torch.float32, "heads_first")
    ]
    for got, expected, name in zip(read[:2], read[2:], "kv", strict=True):
        gap = (got - expected).norm() / expected.norm()
        assert gap < made.tolerance, f"{name} is off by {gap:.2e}"


def with_rope(scene: Scene) -> None:
    angles = torch.arange(2000)[:, None] * 10000 ** -(torch.arange(8) * 2 / 16)
    scene.layer.rope = Rope(angles.cos().to(scene.device), angles.sin().to(scene.device))


def check_decode_that_prepares(made: Quantised) -> None:
    """Compare with prepare, decode and merge in turn."""
    scene = made.scene([(130, 1), (0, 1)])
    with_rope(scene)
    meta = scene._meta([(0, 130, 1), (1, 0, 1)])
    new = [torch.stack([one[-1] for one in side]) for side in (scene.keys, scene.values)]
    qkv = torch.cat([torch.cat(scene.queries), *new], dim=1).flatten(1)
    clean = {name: pages.clone() for name, pages in scene.fields.items()}
    results, fields = [], []
    for prepares in (False, True):
        for name, pages in scene.fields.items():
            pages.copy_(clean[name])
        meta.plan = scene.backend.plan(meta)
        (part,) = meta.plan
        assert part.prepares
        part.prepares = prepares
        q = scene.backend.prepare(scene.layer, qkv, scene.fields, meta)
        assert q is not None
        out = torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
        scene.backend.forward(scene.layer, q, None, None, scene.fields, meta, out)
        results.append(out)
        fields.append({name: pages.float() for name, pages in scene.fields.items()})
    torch.testing.assert_close(results[1], results[0], atol=5e-3, rtol=5e-3)
    torch.testing.assert_close(fields[1], fields[0], equal_nan=True)


@on_cpu
@OF_EVERY_FORM
class TestInterpreted:
    def test_every_kind_of_step(self, form: str) -> None:
        made = contract(form)
        made.check(made.scene([(70, 1), (0, 1), (33, 20), (3, 2)]))

    def test_everything_at_once(self, form: str) -> None:
        made = contract(form)
        made.check(made.scene([(90, 1), (9, 24)], window=40, sinks=True, soft_cap=2.0))

    def test_a_shared_prefix(self, form: str) -> None:
        made = contract(form)
        made.check(made.shared_scene([(71, 1), (70, 1), (5, 1)], [((0, 1), 68)]))

    def test_prepare_stores_what_the_form_says(self, form: str) -> None:
        check_twins(contract(form), [(9, 1), (0, 1), (3, 4)], heads=9, kv_heads=3)

    def test_the_decode_kernel_can_prepare(self, form: str) -> None:
        check_decode_that_prepares(contract(form))

    def test_keys_are_gathered_as_numbers(self, form: str) -> None:
        made = contract(form)
        scene = made.scene([(9, 1)])
        table = torch.tensor(scene.tables, dtype=torch.int32)
        found = gather(scene.fields, table, 2, 8, 9, scene.queries[0])
        for got, wanted in zip(found, scene.stored(0), strict=True):
            torch.testing.assert_close(
                got[0, :, :7].transpose(0, 1).float(), wanted[2:9], atol=2e-3, rtol=2e-3
            )
            assert not got[0, :, 7:].any()

    def test_a_batch_changes_no_bit_of_invariant(self, form: str) -> None:
        made = Invariant()
        made.form = form
        made.test_deterministic_results_do_not_depend_on_the_batch()


@on_cpu
def test_heads_that_hold_nan_are_stored_as_nan() -> None:
    scene = contract("int8").scene([(0, 2)])
    scene.keys[0][1, 0, 5] = float("nan")
    scene.run()
    page = scene.tables[0][0]
    assert scene.fields["k_scale"][page, :, :2, 0].isnan().tolist() == [
        [False, True],
        [False, False],
    ]


class OnDevice(Quantised):
    device = "cuda"
    dtype = "bfloat16"
    tolerance = 0.04

    @pytest.mark.parametrize("page_tokens", [1, 16, 64])
    def test_long_contexts(self, page_tokens: int) -> None:
        sizes = {"heads": 16, "kv_heads": 8, "head_dim": 128, "value_dim": 128}
        sequences = [(2999, 1), (1, 1), (2500, 300), (0, 1000), (2047, 3)]
        self.check(self.scene(sequences, page_tokens=page_tokens, **sizes))

    @pytest.mark.parametrize("head_dim", [32, 64, 128])
    def test_heads_of_every_size(self, head_dim: int) -> None:
        sizes = {"head_dim": head_dim, "value_dim": head_dim}
        self.check(self.scene([(70, 1), (0, 1), (33, 20), (3, 2), (129, 1)], **sizes))

    def test_many_requests_on_few_prefixes(self) -> None:
        sizes = {"heads": 16, "kv_heads": 8, "head_dim": 128, "value_dim": 128}
        sequences = [(1100 + index * 37 % 400, 1) for index in range(40)]
        prefixes = [(range(0, 40, 2), 1088), (range(1, 40, 2), 320)]
        self.check(self.shared_scene(sequences, prefixes, page_tokens=16, **sizes))

    def test_prepare_stores_what_the_form_says(self) -> None:
        check_twins(
            contract(self.form, self.dtype, "cuda"), [(900, 1), (0, 1), (300, 40)], page_tokens=16
        )

    def test_the_decode_kernel_can_prepare(self) -> None:
        check_decode_that_prepares(contract(self.form, "float16", "cuda"))


@on_gpu
@pytest.mark.gpu
class TestInt4OnDevice(OnDevice):
    pass


@on_gpu
@pytest.mark.gpu
class TestInt8OnDevice(OnDevice):
    form = "int8"


@on_gpu
@pytest.mark.gpu
class TestFp8OnDevice(OnDevice):
    form = "fp8"


@on_gpu
@pytest.mark.gpu
class TestInvariantInt8OnDevice(Invariant):
    device = "cuda"
    dtype = "bfloat16"
    tolerance = 0.04
    form = "int8"


def test_devices_that_cannot_convert_8_bit_floats_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an A100")
    device_module.require_conversion(torch.device("cuda"), "int8")
    with pytest.raises(DeviceError, match="this is an A100. Set quant.kv to int8"):
        device_module.require_conversion(torch.device("cuda"), "fp8")


def test_a_form_that_no_kernel_knows_is_refused() -> None:
    class Other(KVQuant):
        name = "nf4"
        layout = write = read = None  # type: ignore[assignment]

    spec = AttentionSpec(4, 2, 64, 64, "float32", 16)
    with pytest.raises(PluginError, match="stored as 'nf4'"):
        TritonAttention(TritonSettings(), spec, Other())
    with pytest.raises(PluginError, match="stored as 'nf4'"):
        InvariantAttention(InvariantSettings(), spec, Other())


def test_sharing_pays_from_more_tokens_where_tokens_are_smaller() -> None:
    spec = AttentionSpec(4, 2, 64, 64, "float16", 16)
    found = {}
    for form in ("none", "int8", "int4"):
        kv_quant: KVQuant = Registry.discover().get("kv_quant", form).load()(Settings())
        settings = TritonSettings(cascade_bytes=512 * 1000)
        found[form] = TritonAttention(settings, spec, kv_quant).sharing_pays_from
    assert found == {"none": 1000, "int8": 1940, "int4": 3556}
