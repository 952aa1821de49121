"""How far two engines that run the same model agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from camshaft.errors import CamshaftError
from camshaft.request import Request, RequestOutput, SamplingParams, TokenSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from camshaft.loop.engine import Engine

_ROWS = 256
"""Positions that are compared at a time: a distribution has 49,152 numbers of 8 bytes."""

_TOP = 5


@dataclass(frozen=True, slots=True)
class Bar:
    """What a precision owes the reference.

    Attributes:
        near_tie: Where the reference's best two logits lie nearer, either may come first.
        clear_agreement: Least share of the other positions with the same best token.
        kl_mean: Most of the mean divergence, in nats.
    """

    near_tie: float
    clear_agreement: float
    kl_mean: float


_HALF = Bar(2e-2, 0.995, 1e-3)

BARS = {"bfloat16": _HALF, "float16": _HALF, "float32": Bar(1e-4, 1.0, 1e-6)}
"""By `model.dtype`."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two readings of a text, compared.

    Attributes:
        perplexity: Exponential of the mean surprise, of the one that is tested.
        perplexity_of_reference: The same of the other.
        argmax: Share of positions with the same best token.
        clear: Positions that are no near-tie of the reference.
        argmax_clear: Share of these with the same best token.
        worst_gap: How far the reference's best two logits lie apart where the best token differs,
            at most.
        kl_mean: Mean Kullback-Leibler divergence from the reference, in nats.
        kl_max: Its maximum.
        logprob_gap: Mean distance of the logprobs of the reference's best five tokens, in nats.
    """

    perplexity: float
    perplexity_of_reference: float
    argmax: float
    clear: int
    argmax_clear: float
    worst_gap: float
    kl_mean: float
    kl_max: float
    logprob_gap: float


def compare(
    got: torch.Tensor, wanted: torch.Tensor, forced: torch.Tensor, near_tie: float
) -> Agreement:
    """Compare logits before the same tokens.

    Args:
        got: [P, V], of the engine that is tested; the device that compares.
        wanted: [P, V], of the reference.
        forced: int64 [P], the tokens that came.
        near_tie: See `Bar`.
    """
    parts = [
        _compare_rows(*(one[at : at + _ROWS].to(got.device) for one in (got, wanted, forced)))
        for at in range(0, len(got), _ROWS)
    ]
    surprise, surprise_of_reference, gap, same, kl, distance = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    clear = gap > near_tie
    return Agreement(
        perplexity=surprise.mean().exp().item(),
        perplexity_of_reference=surprise_of_reference.mean().exp().item(),
        argmax=same.double().mean().item(),
        clear=int(clear.sum()),
        argmax_clear=same[clear].double().mean().item(),
        worst_gap=gap.masked_fill(same, 0).max().item(),
        kl_mean=kl.mean().item(),
        kl_max=kl.max().item(),
        logprob_gap=distance.mean().item(),
    )


def _compare_rows(
    got: torch.Tensor, wanted: torch.Tensor, forced: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return six columns [P]: both surprises, gap, same best, divergence, top distance."""
    ours, theirs = (one.double().log_softmax(1) for one in (got, wanted))
    top, ids = theirs.topk(_TOP)
    index = forced[:, None]
    return (
        -ours.gather(1, index)[:, 0],
        -theirs.gather(1, index)[:, 0],
        top[:, 0] - top[:, 1],
        ours.argmax(1) == ids[:, 0],
        (theirs.exp() * (theirs - ours)).sum(1),
        (ours.gather(1, ids) - top).abs().mean(1),
    )


def continue_greedily(
    engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, *, logprobs: int | None = None
) -> list[RequestOutput]:
    """Return what an engine says after each prompt, all of them in one batch.

    Args:
        engine: It.
        prompts: Token ids.
        tokens: How many to generate; EOS is ignored.
        logprobs: Alternatives to report. Without them decode steps can be recorded as a whole.

    Raises:
        CamshaftError: A request ended early.
    """
    answers = [RequestOutput(id=str(number)) for number in range(len(prompts))]
    params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True, logprobs=logprobs)
    for number, prompt in enumerate(prompts):
        engine.submit(Request(id=str(number), spans=(TokenSpan(list(prompt)),), params=params))
    while engine.has_work:
        for output in engine.step():
            if output.finish not in (None, "length"):
                raise CamshaftError(f"{output.id} ended with '{output.finish}': {output.message}")
            answers[int(output.id)].token_ids += output.token_ids
            answers[int(output.id)].logprobs += output.logprobs
    return answers


def same_beginnings(
    got: Sequence[RequestOutput], wanted: Sequence[RequestOutput], near_tie: float
) -> tuple[int, int]:
    """Compare answers up to the first near-tie of the reference, or the first difference.

    Args:
        got: Of the engine that is tested.
        wanted: Of the reference, with two alternatives or more.
        near_tie: See `Bar`.

    Returns:
        Tokens that were compared, and answers that differ before a near-tie.
    """
    compared = different = 0
    for ours, theirs in zip(got, wanted, strict=True):
        for token, chosen, report in zip(
            ours.token_ids, theirs.token_ids, theirs.logprobs, strict=True
        ):
            best, second = report.top_logprobs[:2]
            if best - second <= near_tie:
                break
            compared += 1
            if token != chosen:
                different += 1
                break
    return compared, different
