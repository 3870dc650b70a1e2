"""Every family of the Transformers backend against transformers itself, in float32."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig
from pagewire.sampling_params import SamplingParams
from tests.parity import ParityReport
from tests.worker_svc.reference import greedy
from tests.worker_svc.step_driver import StepDriver
from tests.worker_svc.transformer_families import (
    FAMILIES,
    UNLISTED,
    VOCAB_SIZE,
    phi3_longrope,
    write_family,
    write_model,
)
from worker_svc.attention.base import AttentionMetadata
from worker_svc.model_runner import ModelRunner
from worker_svc.models.hf_files import read_model_config
from worker_svc.models.registry import MODELS
from worker_svc.models.shape import read_shape
from worker_svc.sim.metadata import read_model_info
from worker_svc.step import ModelInfo

MAX_TOKENS = 10
LENGTHS = (1, 2, 5, 17, 30, 40)
CHUNK = 16
LOGITS_LENGTH = 48
LIKELIEST = SamplingParams(temperature=0.0, logprobs=5)


@dataclass
class Served:
    reference: Any
    runner: ModelRunner
    info: ModelInfo
    directory: Path


def make_config(model: Path, **fields: Any) -> EngineConfig:
    config = ModelConfig(
        model=str(model), **({"dtype": "float32", "model_impl": "transformers"} | fields)
    )
    return EngineConfig(model=config, device=DeviceConfig(device="cpu", num_threads=1))


def serve(reference: Any, directory: Path, **fields: Any) -> Served:
    runner = ModelRunner(make_config(directory, **fields))
    return Served(reference, runner, runner.load(lambda stage, fraction: None), directory)


def make_prompts(lengths: Sequence[int]) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module", params=FAMILIES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("family")
    reference = write_family(directory, request.param)
    yield serve(reference, directory)


@torch.inference_mode()
def prefill_logits(runner: ModelRunner, prompt: Sequence[int]) -> torch.Tensor:
    """Logits of every position of a prompt in one step, [len(prompt), vocab_size]."""
    runner.allocate_kv_cache(16, 8)
    loaded = runner._loaded
    assert loaded is not None
    length = len(prompt)
    metadata = AttentionMetadata(
        slot_mapping=torch.arange(8, 8 + length),
        block_tables=torch.arange(1, 1 + -(-length // 8))[None],
        seq_lens=[length],
        query_start_loc=[0, length],
        num_single_rows=0,
    )
    attention = loaded.backend.begin_step(metadata)
    hidden = loaded.model(torch.tensor(prompt), torch.arange(length), attention)
    return loaded.model.compute_logits(hidden)


def assert_greedy_parity(served: Served, lengths: Sequence[int], chunk: int = CHUNK) -> None:
    driver = StepDriver(served.runner, num_blocks=128, block_size=8, chunk=chunk)
    prompts = make_prompts(lengths)
    requests = [driver.add(prompt, max_tokens=MAX_TOKENS) for prompt in prompts]
    driver.run()
    report, distinct = ParityReport(), set()
    for prompt, request in zip(prompts, requests, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = greedy(served.reference, prompt, MAX_TOKENS)
        distinct.update(expected.token_ids)
        report.compare(
            f"{len(prompt)} prompt tokens",
            request.output_token_ids,
            expected.token_ids,
            expected.gaps.__getitem__,
        )
    assert len(distinct) > 10, "a model that repeats itself compares nothing"
    report.check()


def test_logits_equal_those_of_transformers(served: Served) -> None:
    [prompt] = make_prompts([LOGITS_LENGTH])
    with torch.inference_mode():
        expected = served.reference(torch.tensor([prompt])).logits[0].float()
    logits = prefill_logits(served.runner, prompt)
    assert logits.dtype == torch.float32
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=2e-3)


def test_greedy_ids_of_a_mixed_batch_in_chunks_equal_those_of_transformers(served: Served) -> None:
    assert_greedy_parity(served, LENGTHS)


def test_batch_mates_and_chunks_change_no_bit(served: Served) -> None:
    prompts = make_prompts((1, 2, 7, 33, 64))

    def logprobs(
        batches: Sequence[Sequence[list[int]]], chunk: int
    ) -> list[list[dict[int, float]]]:
        """Of each request: for each token the likeliest ones."""
        result = []
        for batch in batches:
            driver = StepDriver(served.runner, num_blocks=64, block_size=8, chunk=chunk)
            requests = [driver.add(prompt, LIKELIEST, max_tokens=8) for prompt in batch]
            driver.run()
            result += [request.logprobs for request in requests]
        return result

    alone = logprobs([[prompt] for prompt in prompts], 10_000)
    assert all(len(likeliest) >= 5 for request in alone for likeliest in request)
    assert logprobs([prompts], 10_000) == alone
    assert logprobs([prompts], 5) == alone


def test_the_simulated_worker_reports_the_same_shape(served: Served) -> None:
    config = make_config(served.directory)
    simulated = read_model_info(config)
    for name in (
        "architecture",
        "vocab_size",
        "max_model_len",
        "num_layers",
        "num_kv_heads",
        "head_dim",
        "hidden_size",
        "eos_token_ids",
        "bos_token_id",
    ):
        assert getattr(simulated, name) == getattr(served.info, name), name
    loaded = served.runner._loaded
    assert loaded is not None
    windows = read_shape(read_model_config(served.directory), "transformers").sliding_windows
    assert windows == tuple(loaded.model.attention_spec.sliding_windows)


@pytest.mark.parametrize("name", UNLISTED)
def test_a_decoder_without_a_row_is_served_after_its_probe(name: str, tmp_path: Path) -> None:
    architecture, config_class, fields = UNLISTED[name]
    assert architecture not in MODELS
    reference = write_model(tmp_path, architecture, config_class, **fields)
    assert_greedy_parity(serve(reference, tmp_path, model_impl="auto"), LENGTHS)


@pytest.mark.parametrize(("original", "lengths"), [(256, (7, 40)), (32, (40, 70))])
def test_longrope_takes_its_factors_by_the_longest_sequence(
    original: int, lengths: Sequence[int], tmp_path: Path
) -> None:
    reference = write_family(tmp_path, "phi3", **phi3_longrope(original))
    assert_greedy_parity(serve(reference, tmp_path), lengths, chunk=10_000)


def test_longrope_factors_do_not_depend_on_batch_mates(tmp_path: Path) -> None:
    runner = serve(write_family(tmp_path, "phi3", **phi3_longrope(32)), tmp_path).runner
    short, long = make_prompts((8, 70))
    outputs = []
    for prompts in ([short], [short, long]):
        driver = StepDriver(runner, num_blocks=64, block_size=8)
        first, *_ = [driver.add(prompt, max_tokens=8) for prompt in prompts]
        driver.run()
        outputs.append(first.output_token_ids)
    assert outputs[0] == outputs[1]
