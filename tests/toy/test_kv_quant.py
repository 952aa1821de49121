"""A toy engine over quantised keys and values."""

from __future__ import annotations

import pytest

from camshaft.testing.engines import make_request, run_to_end
from camshaft.testing.toy import compose_toy, pool

PROMPTS = [[5, 9, 2, 7, 1, 3], [4] * 11, [8, 6, 7, 5, 3, 0, 9, 1, 2]]


def answers(*overrides: str, apart: bool = False) -> list[list[int]]:
    """Return the greedy answers to the prompts, together or one after the other."""
    composed = compose_toy(overrides=overrides)
    requests = [
        make_request(f"r{at}", prompt, max_tokens=8, ignore_eos=True)
        for at, prompt in enumerate(PROMPTS)
    ]
    found: list[list[int]] = []
    for some in [[one] for one in requests] if apart else [requests]:
        for one in some:
            composed.engine.submit(one)
        outputs = run_to_end(composed.engine)
        found += [list(outputs[one.id].token_ids) for one in some]
    composed.engine.close()
    return found


@pytest.mark.parametrize("form", ["fp8", "int8", "int4"])
@pytest.mark.parametrize("attention", ["reference", "sdpa"])
def test_answers_do_not_depend_on_chunks_company_or_poison(form: str, attention: str) -> None:
    deterministic = "true" if attention == "reference" else "false"
    base = (
        f"quant.kv={form}",
        f"attention={attention}",
        f"engine.deterministic={deterministic}",
    )
    plain = answers(*base, apart=True)
    assert answers(*base, "scheduler.step_tokens=4", "engine.poison=true") == plain


@pytest.mark.parametrize(("form", "tokens"), [("none", 32), ("int8", 108), ("int4", 140)])
def test_the_same_memory_holds_more_tokens(form: str, tokens: int) -> None:
    composed = compose_toy(overrides=(f"cache.memory={pool(8)}", f"quant.kv={form}"))
    assert composed.info.pool_tokens == tokens
    composed.engine.close()
