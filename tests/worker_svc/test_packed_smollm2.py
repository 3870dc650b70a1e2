"""The embedded model with packed weights: what its rounding costs, and what changes no token."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch.nn import functional

from pagewire.engine_config import (
    AttentionConfig,
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
)
from pagewire.model_source import resolve_model
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.step_driver import GREEDY, StepDriver
from tokenizer_svc.gguf_fields import read_vocabulary
from tokenizer_svc.gguf_tokenizer import build_tokenizer
from worker_svc.input_batch import InputBatch
from worker_svc.loaded_model import LoadedModel
from worker_svc.model_runner import ModelRunner
from worker_svc.models import packed_build
from worker_svc.step import NewRequest, SchedulerOutput
from worker_svc.weights.gguf_source import GgufSource

PERPLEXITY = 0.001
"""Most by which packing may change perplexity, relative."""
AGREEMENT = 0.99
"""Least share of places where the likeliest token is that of float32."""
DIVERGENCE = 5e-4
"""Most KL divergence from float32's distribution at any place of a chat. 8-bit activations gave
0.02 and 0.04, and another answer to `CAPITAL`; bfloat16 ones give 0.001."""
VOCAB_SIZE = 49_152
CAPITAL = "What is the capital of France?"
QUESTIONS = (CAPITAL, "Write a short poem about the sea.", "What is 12 times 7?")
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TEXT = """
The water cycle describes how water moves on, above and below the surface of the Earth. The sun
heats the oceans, and some of the water turns into vapour and rises into the air. Rising air
currents take the vapour up into the atmosphere, where cooler temperatures cause it to condense
into clouds. Winds move the clouds around the globe, cloud particles collide, grow, and fall out
of the sky as rain or snow. Some of the snow piles up as ice, which can store frozen water for
thousands of years. Most of the rain falls back into the oceans or onto land, where it flows over
the ground as surface runoff. A part of it enters rivers in valleys, and the streams carry it
towards the oceans. Some of it soaks into the ground and fills layers of rock below with fresh
water. Plants take up a share of this water through their roots and give it back to the air
through their leaves. Over time, all of this water keeps moving, and some of it reaches the ocean
again, where the cycle began. People have known parts of this for a long time: farmers in ancient
Egypt measured the height of the Nile every year, because the harvest, and the taxes, depended on
how far the river rose. In the seventeenth century Pierre Perrault compared the rain that fell on
the valley of the Seine with the water that the river carried, and found that there was more than
enough rain to feed it. Until then many scholars had believed that springs were filled by the sea
through hidden channels under the ground. Edmond Halley measured how fast water evaporates from a
warm pan and worked out that the Mediterranean loses more by evaporation than its rivers bring.
Since then the numbers have become better, but the picture is still the same.
"""


def load(backend: Any, num_threads: int = 1, model: str = "smollm2") -> ModelRunner:
    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model=model, dtype="auto" if backend == "cpu" else "float32"),
            attention=AttentionConfig(attention_backend=backend),
            device=DeviceConfig(device="cpu", num_threads=num_threads),
            cache=CacheConfig(kv_cache_memory_bytes=2**26),
        )
    )
    runner.load(lambda phase, fraction: None)
    return runner


@torch.inference_mode()
def logits_of(loaded: LoadedModel, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size] of one prompt."""
    num_blocks = -(-len(token_ids) // 16)
    loaded.backend.allocate_kv_cache(1 + num_blocks, 16)
    batch = InputBatch(16, loaded.info.max_model_len)
    request = NewRequest(
        handle=0,
        request_id="text",
        prompt_token_ids=token_ids,
        output_token_ids=[],
        sampling=SamplingParams(temperature=0.0),
        num_computed_tokens=0,
        block_ids=range(1, 1 + num_blocks),
    )
    rows = batch.update(
        SchedulerOutput(
            step=1,
            new_requests=[request],
            handles=[0],
            num_scheduled_tokens=[len(token_ids)],
        )
    )
    hidden = loaded.forward(batch.make_inputs(rows, min_tokens=loaded.min_rows))
    return loaded.compute_logits(hidden[: len(token_ids)]).clone()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return build_tokenizer(read_vocabulary(resolve_model("smollm2").path))


@pytest.fixture(scope="module")
def packed() -> ModelRunner:
    return load("cpu")


@pytest.fixture(scope="module")
def plain() -> ModelRunner:
    return load("torch")


def chat(tokenizer: Tokenizer, question: str) -> list[int]:
    """Token ids of a question behind the template's own system message."""
    turns = ("system\n" + SYSTEM, "user\n" + question)
    text = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
    ids: list[int] = tokenizer.encode(text + "<|im_start|>assistant\n").ids
    assert ids[0] == 1, "what takes the place of a BOS comes first: its activations are the largest"
    return ids


def write_bfloat16(directory: Path) -> Path:
    """The embedded model as a Hugging Face folder in bfloat16."""
    source = GgufSource(resolve_model("smollm2").path)
    tensors = {name: source.tensor(name).bfloat16().contiguous() for name in source.names()}
    save_file(tensors, directory / "model.safetensors")
    config = {**source.config, "dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


@pytest.mark.timeout(600)
def test_perplexity_and_choices_are_those_of_the_file(
    tokenizer: Tokenizer, packed: ModelRunner, plain: ModelRunner
) -> None:
    check_text(tokenizer, packed, plain)


@pytest.mark.timeout(600)
def test_bfloat16_weights_of_a_folder_are_read_as_they_are(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Processors that multiply bfloat16 leave it to PyTorch.
    monkeypatch.setattr(packed_build, "multiplies_bfloat16", lambda: False)
    folder = str(write_bfloat16(tmp_path))
    packed, plain = load("cpu", model=folder), load("torch", model=folder)
    infos = [runner._require_loaded().info for runner in (packed, plain)]
    assert infos[0].weight_bytes < infos[1].weight_bytes * 0.51
    check_text(tokenizer, packed, plain)
    for question in QUESTIONS:
        check_chat(tokenizer, packed, plain, question)


def check_text(tokenizer: Tokenizer, packed: ModelRunner, plain: ModelRunner) -> None:
    token_ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    assert len(token_ids) > 350
    targets = torch.tensor(token_ids[1:])
    rows = [logits_of(runner._require_loaded(), token_ids) for runner in (packed, plain)]
    losses = [float(functional.cross_entropy(each[:-1], targets)) for each in rows]
    assert abs(losses[0] - losses[1]) < PERPLEXITY
    agreement = (rows[0].argmax(-1) == rows[1].argmax(-1)).float().mean()
    assert float(agreement) > AGREEMENT


@pytest.mark.timeout(600)
@pytest.mark.parametrize("question", QUESTIONS)
def test_chats_have_the_distributions_of_the_file(
    tokenizer: Tokenizer, packed: ModelRunner, plain: ModelRunner, question: str
) -> None:
    check_chat(tokenizer, packed, plain, question)


def check_chat(
    tokenizer: Tokenizer, packed: ModelRunner, plain: ModelRunner, question: str
) -> None:
    token_ids = chat(tokenizer, question)
    found, expected = (
        logits_of(runner._require_loaded(), token_ids).log_softmax(-1) for runner in (packed, plain)
    )
    divergence = (expected.exp() * (expected - found)).sum(-1)
    assert float(divergence.max()) < DIVERGENCE


@pytest.mark.timeout(600)
def test_the_question_of_the_readme_is_answered(tokenizer: Tokenizer, packed: ModelRunner) -> None:
    driver = StepDriver(packed, num_blocks=10)
    request = driver.add(chat(tokenizer, CAPITAL), GREEDY, max_tokens=8)
    driver.run()
    answer = tokenizer.decode(request.output_token_ids, skip_special_tokens=False)
    assert answer == "The capital of France is Paris.<|im_end|>"


@pytest.mark.timeout(600)
def test_chunks_preemption_and_threads_change_no_token() -> None:
    numbers = random.Random(1)
    prompts = [[numbers.randrange(100, VOCAB_SIZE) for _ in range(n)] for n in (1, 16, 33, 150)]
    sampling = SamplingParams(temperature=0.8, top_p=0.95, seed=7)

    def run(runner: ModelRunner, chunk: int, preempt_after: int | None) -> list[list[int]]:
        driver = StepDriver(runner, num_blocks=100, chunk=chunk)
        requests = [
            driver.add(prompt, params, 12, preempt_after)
            for params in (sampling, GREEDY)
            for prompt in prompts
        ]
        driver.run()
        return [request.output_token_ids for request in requests]

    whole = run(load("cpu"), 10_000, None)
    assert len({token for output in whole for token in output}) > 30
    assert run(load("cpu", num_threads=2), 40, 5) == whole
