"""Both runners with a small model, and what tests ask of either of them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig
from tests.worker_svc import tiny_models
from tests.worker_svc.harness import sim_config, write_model
from worker_svc.grammar_masks import Bitmasks
from worker_svc.model_runner import ModelRunner
from worker_svc.sim.runner import SimRunner

TORCH_VOCAB_SIZE = 160
"""Of `tiny_models`."""


def make_model_runner(directory: Path) -> ModelRunner:
    """A random model in float32, the type in which drafts change no token."""
    tiny_models.write_tiny_model(directory)
    config = EngineConfig(
        model=ModelConfig(model=str(directory), dtype="float32"),
        device=DeviceConfig(device="cpu", num_threads=1),
    )
    runner = ModelRunner(config)
    runner.load(lambda stage, fraction: None)
    return runner


def make_sim_runner(directory: Path) -> SimRunner:
    runner = SimRunner(sim_config(write_model(directory)))
    runner.load(lambda stage, fraction: None)
    return runner


def make_prompts(lengths: Sequence[int], highest: int = TORCH_VOCAB_SIZE) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, highest) for _ in range(length)] for length in lengths]


def bitmask(token_ids: Iterable[int], vocab_size: int) -> Bitmasks:
    """One row: the bits of these token ids."""
    bits = np.zeros(vocab_size, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little")
