from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import numpy as np

from camshaft.contracts.attention import AttentionBackend, AttentionMeta, GraphLevel, SharedPrefixes
from camshaft.executor.graphs import DecodeGraphs
from camshaft.executor.torch_executor import TorchExecutor
from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import compose_toy

PAGE = 4


class Watched:
    """A toy engine whose attention looks at what it is told of shared prefixes.

    Attributes:
        engine: Runs.
        told: For each time, how many requests decoded and how many of them shared.
        recorded: Plans that were made for a recording, with or without sharing.
    """

    def __init__(self) -> None:
        changes: dict[str, Any] = {
            "attention": {"use": "sdpa"},
            "engine": {"deterministic": False, "debug": True},
            "cache": {"memory": "2MiB"},
        }
        composed = compose_toy(changes=changes)
        self.engine = composed.engine
        self.told: list[tuple[int, int]] = []
        self.recorded: list[bool] = []
        self.slots = np.zeros(0, dtype=np.int32)
        executor = self.engine.parts.executor
        assert isinstance(executor, TorchExecutor)
        backend = cast("Any", executor.parts.groups[0].decode)
        self._plan, self._forward = backend.plan, backend.forward
        backend.sharing_pays_from, backend.graph_level = 1, GraphLevel.SINGLE_TOKEN
        backend.plan, backend.forward, backend.share = self.plan, self.forward, self.share
        self.room = composed.memory.room
        self.executor = TorchExecutor(executor.parts)
        self.engine.parts.executor = self.executor

    def plan(self, meta: AttentionMeta, *, capture: bool = False) -> Any:
        if capture:
            self.recorded.append(meta.shared is not None)
            return self.recorded
        if meta.shared is not None:
            self.look(meta.shared)
        return self._plan(meta)

    def share(self, plan: Any, shared: SharedPrefixes) -> None:
        assert plan is self.recorded
        self.look(shared)

    def forward(self, layer: Any, q: Any, k: Any, v: Any, kv: Any, meta: Any, out: Any) -> None:
        if meta.plan is self.recorded:  # a CPU's replay: plan for what the buffers hold now
            host = meta.context.numpy().astype(np.int32)
            meta = replace(meta, host_context=host, shared=None)
            meta.plan = self._plan(meta)
        self._forward(layer, q, k, v, kv, meta, out)

    def look(self, shared: SharedPrefixes) -> None:
        """Compare with the device's own tables and lengths."""
        state = self.executor.parts.state
        slots = self.slots[: len(shared.group)]
        for number, tokens in enumerate(shared.tokens.tolist()):
            members = slots[shared.group == number]
            tables = state.tables[0][members, : tokens // PAGE]
            assert len(members) >= 4
            assert (tables == tables[0]).all()
            assert (tables > 0).all()
            assert (state.lengths[members] >= tokens).all()
        self.told.append((len(slots), int((shared.group >= 0).sum())))

    def run(self) -> dict[str, tuple[int, ...]]:
        """Six requests on one long prefix, a seventh on none."""
        launch = self.executor.launch

        def remember(step: Any) -> None:
            self.slots = step.slots
            launch(step)

        self.executor.launch = remember  # type: ignore[method-assign]
        chance = random.Random(1)
        prefix = [chance.randrange(256) for _ in range(263)]
        self.engine.submit(make_request("first", prefix, 1))
        run_to_end(self.engine)
        for number in range(6):
            prompt = [*prefix, *(chance.randrange(256) for _ in range(2 + 5 * number))]
            self.engine.submit(make_request(f"s{number}", prompt, 8 + 4 * number, ignore_eos=True))
        self.engine.submit(make_request("other", prefix[::-1][:40], 30, ignore_eos=True))
        outputs = run_to_end(self.engine)
        return {name: tuple(one.token_ids) for name, one in outputs.items()}


def test_decoding_requests_with_a_common_prefix_are_told_to_attention() -> None:
    watched = Watched()
    watched.run()
    assert max(watched.told) == (7, 6)  # all that decode, and of these all with the prefix
    assert min(shared for _, shared in watched.told) == 4  # the others had ended


def test_recordings_are_told_when_it_changes_only() -> None:
    wanted = Watched().run()
    watched = Watched()
    graphs = watched.executor.graphs = DecodeGraphs(watched.executor, 8, watched.room)
    assert watched.run() == wanted
    assert sorted(set(watched.recorded)) == [False, True]
    assert 0 < len(watched.told) < graphs.replays / 2
    assert max(watched.told) == (7, 6)


def test_a_backend_that_does_not_ask_is_told_nothing() -> None:
    assert AttentionBackend.sharing_pays_from == 0
    executor = compose_toy().engine.parts.executor
    assert isinstance(executor, TorchExecutor)
    assert executor._sharing == [None]
