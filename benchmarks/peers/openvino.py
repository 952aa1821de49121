"""OpenVINO GenAI as a worker: a GGUF file or a folder in its own format, two kinds of pipeline."""

from __future__ import annotations

import argparse
import time

import numpy as np
import openvino_genai
from openvino import Tensor

from .protocol import Answer, Engine, Question, serve

LARGEST_BATCH = 2**31 - 1
"""Tokens: prompts are never cut."""


def cold_scheduler() -> openvino_genai.SchedulerConfig:
    """Return settings under which no prompt is known from before."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False
    return scheduler


def greedy(outputs: int) -> openvino_genai.GenerationConfig:
    """Return what asks for exactly so many of the likeliest tokens."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = config.min_new_tokens = outputs
    config.ignore_eos = True
    config.do_sample = False
    return config


class Simple:
    """`LLMPipeline`: one call for a batch of prompts of one length."""

    def __init__(self, model: str, threads: int) -> None:
        scheduler = cold_scheduler()
        scheduler.max_num_batched_tokens = LARGEST_BATCH  # its default in this pipeline
        self._pipeline = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads
        )

    def generate(self, question: Question) -> Answer:
        """See `protocol.Engine`."""
        ids = np.array(question.prompts, dtype=np.int64)
        inputs = openvino_genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        start = time.perf_counter()
        found = self._pipeline.generate(inputs, greedy(question.outputs))
        whole_s = time.perf_counter() - start
        tokens = [list(one) for one in found.tokens]
        return Answer(found.perf_metrics.get_ttft().mean / 1e3, whole_s, tokens)


class Continuous:
    """`ContinuousBatchingPipeline`: prompts are requests that share steps."""

    def __init__(self, model: str, threads: int) -> None:
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, cold_scheduler(), "CPU", {"INFERENCE_NUM_THREADS": threads}
        )

    def generate(self, question: Question) -> Answer:
        """See `protocol.Engine`."""
        inputs = [Tensor(np.array([prompt], dtype=np.int64)) for prompt in question.prompts]
        configs = [greedy(question.outputs)] * len(inputs)
        start = time.perf_counter()
        found = self._pipeline.generate(inputs, configs)
        whole_s = time.perf_counter() - start
        first_ms = max(one.perf_metrics.get_ttft().mean for one in found)
        return Answer(first_ms / 1e3, whole_s, [list(one.m_generation_ids[0]) for one in found])


KINDS: dict[str, type[Simple] | type[Continuous]] = {"llm": Simple, "cb": Continuous}


def main() -> None:
    """Serve a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--kind", choices=KINDS, default="llm")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    engine: Engine = KINDS[arguments.kind](arguments.model, arguments.threads)
    serve(engine, ("openvino-genai", "openvino"))


if __name__ == "__main__":
    main()
