"""OpenVINO GenAI's continuous batching, asked by `engine_protocol`. Argument: a model's folder."""

from __future__ import annotations

import os
import sys
import time

import numpy
import openvino
import openvino_genai
from engine_protocol import answer_all

MAX_STREAMS = 64
MAX_BATCHED_TOKENS = 2048
CACHE_GIB = 1


def _pipeline(folder: str) -> openvino_genai.ContinuousBatchingPipeline:
    config = openvino_genai.SchedulerConfig()
    config.cache_size = CACHE_GIB
    config.max_num_seqs = MAX_STREAMS
    config.max_num_batched_tokens = MAX_BATCHED_TOKENS
    config.enable_prefix_caching = True
    config.dynamic_split_fuse = True
    threads = {"INFERENCE_NUM_THREADS": os.cpu_count()}
    return openvino_genai.ContinuousBatchingPipeline(folder, config, "CPU", threads)


def main() -> None:
    """Load the model and answer."""
    pipeline = _pipeline(sys.argv[1])

    def generate(prompts: list[list[int]], max_tokens: int) -> float:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = max_tokens
        config.ignore_eos, config.do_sample = True, False
        tensors = [openvino.Tensor(numpy.array([ids], dtype=numpy.int64)) for ids in prompts]
        began = time.perf_counter()
        outputs = pipeline.generate(tensors, [config] * len(tensors))
        seconds = time.perf_counter() - began
        if {len(output.m_generation_ids[0]) for output in outputs} != {max_tokens}:
            raise AssertionError("an output has another length than was asked for")
        return seconds

    answer_all(generate)


if __name__ == "__main__":
    main()
