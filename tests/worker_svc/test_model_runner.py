from __future__ import annotations

import gc
import random
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from pagewire.engine_config import DeviceConfig, EngineConfig, LoadConfig, ModelConfig
from pagewire.sampling_params import SamplingParams
from tests.parity import ParityReport
from tests.worker_svc import tiny_models
from tests.worker_svc.reference import greedy
from tests.worker_svc.step_driver import GREEDY, StepDriver
from worker_svc.input_batch import StepError
from worker_svc.model_runner import ModelRunner
from worker_svc.step import NewRequest, SchedulerOutput

MAX_TOKENS = 24
LENGTHS = (1, 3, 7, 16, 17, 40)
SAMPLED = SamplingParams(temperature=1.0, top_k=40, top_p=0.95, min_p=0.01, seed=1234)


def make_runner(
    model: Path, *, max_model_len: int | None = None, dtype: Any = "float32"
) -> ModelRunner:
    runner = ModelRunner(
        EngineConfig(
            model=ModelConfig(model=str(model), dtype=dtype, max_model_len=max_model_len),
            device=DeviceConfig(device="cpu", num_threads=1),
        )
    )
    runner.load(lambda phase, fraction: None)
    return runner


def make_prompts(lengths: Sequence[int], vocab_size: int = 160) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def assert_greedy_parity(
    model: Any, runner: ModelRunner, lengths: Sequence[int], max_tokens: int = MAX_TOKENS
) -> None:
    driver = StepDriver(runner, num_blocks=128, block_size=8)
    prompts = make_prompts(lengths)
    requests = [driver.add(prompt, max_tokens=max_tokens) for prompt in prompts]
    driver.run()
    report, distinct = ParityReport(), set()
    for prompt, request in zip(prompts, requests, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = greedy(model, prompt, max_tokens)
        distinct.update(expected.token_ids)
        report.compare(
            f"{len(prompt)} prompt tokens",
            request.output_token_ids,
            expected.token_ids,
            expected.gaps.__getitem__,
        )
    assert len(distinct) > 10, "a model that repeats itself compares nothing"
    report.check()


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    tiny_models.write_tiny_model(directory)
    return directory


@pytest.fixture
def runner(tiny_model: Path) -> ModelRunner:
    return make_runner(tiny_model)


@pytest.mark.parametrize("variant", tiny_models.VARIANTS)
def test_greedy_ids_equal_those_of_transformers(variant: str, tmp_path: Path) -> None:
    model = tiny_models.write_tiny_model(tmp_path, **tiny_models.VARIANTS[variant])
    assert_greedy_parity(model, make_runner(tmp_path), LENGTHS)


def test_longrope_within_the_original_context_equals_transformers(tmp_path: Path) -> None:
    model = tiny_models.write_tiny_model(tmp_path, **tiny_models.longrope(original=64))
    runner = make_runner(tmp_path, max_model_len=64)
    assert_greedy_parity(model, runner, (1, 7, 16, 40))


def test_longrope_beyond_the_original_context_equals_transformers(tmp_path: Path) -> None:
    model = tiny_models.write_tiny_model(tmp_path, **tiny_models.longrope(original=32))
    assert_greedy_parity(model, make_runner(tmp_path), (33, 40, 70, 100))


def test_a_checkpoint_in_shards_gives_the_same_ids(tmp_path: Path) -> None:
    model = tiny_models.write_tiny_model(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_greedy_parity(model, make_runner(tmp_path), (7, 40))


def run_requests(
    runner: ModelRunner,
    lengths: Sequence[int],
    sampling: SamplingParams,
    *,
    chunk: int = 10_000,
    preempt_after: int | None = None,
) -> list[list[int]]:
    driver = StepDriver(runner, num_blocks=256, block_size=8, chunk=chunk)
    requests = [
        driver.add(prompt, sampling, MAX_TOKENS, preempt_after) for prompt in make_prompts(lengths)
    ]
    driver.run()
    return [request.output_token_ids for request in requests]


def run_alone(
    runner: ModelRunner, lengths: Sequence[int], sampling: SamplingParams
) -> list[list[int]]:
    outputs = []
    for prompt in make_prompts(lengths):
        driver = StepDriver(runner, num_blocks=64, block_size=8)
        request = driver.add(prompt, sampling, MAX_TOKENS)
        driver.run()
        outputs.append(request.output_token_ids)
    return outputs


BATCH = (1, 2, 7, 33, 64, 65, 100, 140, 200)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
class TestTokensDependOnTheRequestAlone:
    def test_batch_mates_change_nothing(
        self, runner: ModelRunner, sampling: SamplingParams
    ) -> None:
        together = run_requests(runner, BATCH, sampling)
        assert together == run_alone(runner, BATCH, sampling)
        assert len({token for output in together for token in output}) > 10

    @pytest.mark.parametrize("chunk", [1, 5, 8, 64])
    def test_chunks_change_nothing(
        self, runner: ModelRunner, sampling: SamplingParams, chunk: int
    ) -> None:
        whole = run_requests(runner, BATCH, sampling)
        assert run_requests(runner, BATCH, sampling, chunk=chunk) == whole

    @pytest.mark.parametrize("preempt_after", [1, 9, 23])
    def test_preemption_and_resumption_change_nothing(
        self, runner: ModelRunner, sampling: SamplingParams, preempt_after: int
    ) -> None:
        whole = run_requests(runner, BATCH, sampling)
        assert run_requests(runner, BATCH, sampling, preempt_after=preempt_after) == whole


def test_a_seed_gives_the_same_tokens_and_another_seed_others(runner: ModelRunner) -> None:
    sampling = [SamplingParams(seed=seed) for seed in (1, 1, 2, -1, 2**63 - 1)]
    driver = StepDriver(runner)
    first, again, *others = [driver.add([5, 6, 7], params, MAX_TOKENS) for params in sampling]
    driver.run()
    assert first.output_token_ids == again.output_token_ids
    for other in others:
        assert other.output_token_ids != first.output_token_ids


def test_a_prefix_hit_reads_the_other_requests_blocks(runner: ModelRunner) -> None:
    [prompt] = make_prompts([37])
    driver = StepDriver(runner, block_size=8)
    first = driver.add(prompt, max_tokens=8)
    driver.step()
    second = driver.add(prompt, max_tokens=8)
    second.block_ids, second.num_computed_tokens = first.block_ids[:4], 32
    driver.run()
    assert second.output_token_ids == first.output_token_ids


def test_nothing_is_sampled_before_the_prefill_is_complete(runner: ModelRunner) -> None:
    driver = StepDriver(runner, chunk=16)
    driver.add(make_prompts([40])[0], max_tokens=1)
    assert [list(driver.step().num_sampled) for _ in range(3)] == [[0], [0], [1]]


def poison(runner: ModelRunner, outputs: Sequence[Sequence[int]] = ()) -> int:
    """Makes one token id give NaN: one that no good request has."""
    seen = {token for tokens in (*outputs, *make_prompts(LENGTHS)) for token in tokens}
    token_id = min(set(range(3, 160)) - seen)
    assert runner._loaded is not None
    runner._loaded.model.embed_tokens.data[token_id] = torch.nan
    return token_id


def test_a_row_of_nan_fails_that_request_only(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    runner = make_runner(tmp_path)
    expected = run_requests(runner, (7, 40), GREEDY)
    token_id = poison(runner, expected)
    driver = StepDriver(runner, num_blocks=256, block_size=8)
    bad = driver.add([token_id, 5], max_tokens=4)
    good = [driver.add(prompt, max_tokens=MAX_TOKENS) for prompt in make_prompts((7, 40))]
    driver.run()
    assert bad.failure == "NAN_LOGITS"
    assert [request.output_token_ids for request in good] == expected


def test_blocks_that_held_nan_harm_no_later_request(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    runner = make_runner(tmp_path)
    expected = run_alone(runner, (7,), GREEDY)
    token_id = poison(runner, expected)
    # All four usable blocks are filled with NaN, then reused.
    driver = StepDriver(runner, num_blocks=5, block_size=8)
    driver.add([token_id] * 32, max_tokens=1)
    driver.run()
    request = driver.add(make_prompts((7,))[0], max_tokens=MAX_TOKENS)
    driver.run()
    assert [request.output_token_ids] == expected


def test_a_failed_request_fails_again_until_it_is_finished(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path)
    runner = make_runner(tmp_path)
    token_id = poison(runner)
    runner.allocate_kv_cache(8, 8)
    request = NewRequest(1, "request", [token_id, 1], [], GREEDY, 0, [1])
    runner.execute(SchedulerOutput(1, [request], [1], [2], [0]))
    output = runner.execute(SchedulerOutput(2, [], [1], [1], [0]))
    assert [(row.handle, row.failure.reason) for row in output.failed] == [(1, "NAN_LOGITS")]
    assert list(output.num_sampled) == [0]


def test_logprobs_are_given_where_asked(runner: ModelRunner) -> None:
    driver = StepDriver(runner)
    driver.add([5, 6, 7], GREEDY, max_tokens=1)
    driver.add([5, 6, 7], SamplingParams(temperature=0.0, logprobs=3), max_tokens=1)
    output = driver.step()
    assert output.logprobs is not None
    assert list(output.logprobs.counts) == [0, 4]
    assert list(output.logprobs.sampled_ranks) == [0, 1]
    # Greedy: the sampled token is the likeliest of the top three.
    assert output.logprobs.token_ids[0] == output.logprobs.token_ids[1]
    assert output.logprobs.logprobs[0] == output.logprobs.logprobs[1] < 0.0


def first_logprobs(model: Path, dtype: str) -> dict[int, float]:
    driver = StepDriver(make_runner(model, dtype=dtype))
    driver.add(make_prompts([40])[0], SamplingParams(temperature=0.0, logprobs=20), max_tokens=1)
    columns = driver.step().logprobs
    assert columns is not None
    return dict(zip(columns.token_ids, columns.logprobs, strict=True))


def test_bfloat16_logprobs_are_near_those_of_float32(tmp_path: Path) -> None:
    tiny_models.write_tiny_model(tmp_path, initializer_range=0.1)
    exact, rounded = first_logprobs(tmp_path, "float32"), first_logprobs(tmp_path, "bfloat16")
    common = exact.keys() & rounded.keys()
    assert len(common) >= 15
    differences = [abs(exact[token_id] - rounded[token_id]) for token_id in common]
    assert 0.0 < max(differences) < 0.05


def test_reset_drops_requests_and_keeps_weights(runner: ModelRunner) -> None:
    before = run_requests(runner, (7, 40), GREEDY)
    runner.reset()
    with pytest.raises(RuntimeError, match="allocate_kv_cache"):
        runner.execute(SchedulerOutput(1))
    assert run_requests(runner, (7, 40), GREEDY) == before


def test_a_step_with_an_unknown_handle_fails_as_a_whole(runner: ModelRunner) -> None:
    runner.allocate_kv_cache(8, 8)
    with pytest.raises(StepError, match="handle 9"):
        runner.execute(SchedulerOutput(1, handles=[9], num_scheduled_tokens=[1]))


def test_a_step_without_requests_is_empty(runner: ModelRunner) -> None:
    runner.allocate_kv_cache(8, 8)
    output = runner.execute(SchedulerOutput(7, finished_handles=[3]))
    assert (output.step, list(output.handles), list(output.sampled_token_ids)) == (7, [], [])


def test_a_larger_max_model_len_than_the_models_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ValueError, match="256 positions: lower --max-model-len"):
        make_runner(tiny_model, max_model_len=257)


def test_a_load_format_that_does_not_fit_is_refused(tiny_model: Path) -> None:
    config = EngineConfig(
        model=ModelConfig(model=str(tiny_model)), load=LoadConfig(load_format="gguf")
    )
    with pytest.raises(ValueError, match="the model is hugging_face"):
        ModelRunner(config).load(lambda phase, fraction: None)


def test_model_info_says_what_was_loaded(tiny_model: Path) -> None:
    runner = ModelRunner(EngineConfig(model=ModelConfig(model=str(tiny_model), dtype="float32")))
    progress: list[tuple[str, float]] = []
    info = runner.load(lambda phase, fraction: progress.append((phase, fraction)))
    assert (info.architecture, info.vocab_size, info.max_model_len) == (
        "LlamaForCausalLM",
        160,
        256,
    )
    assert (info.num_layers, info.num_kv_heads, info.head_dim) == (2, 2, 16)
    assert (info.eos_token_ids, info.bos_token_id, info.dtype) == ((2,), 1, "float32")
    assert runner.kv_bytes_per_block(8) == 2 * 2 * 8 * 2 * 16 * 4
    loading = [fraction for phase, fraction in progress if phase == "load_weights"]
    assert loading == sorted(loading)
    assert loading[-1] == 1.0
    assert progress[-1] == ("profile_memory", 0.0)


def test_weight_bytes_are_those_of_the_parameters(tiny_model: Path) -> None:
    runner = ModelRunner(EngineConfig(model=ModelConfig(model=str(tiny_model), dtype="float32")))
    info = runner.load(lambda stage, fraction: None)
    assert runner._loaded is not None
    num_parameters = sum(p.numel() for p in runner._loaded.model.parameters())
    assert info.weight_bytes == 4 * num_parameters > 0


def test_a_deep_sleep_leaves_no_weights(tiny_model: Path) -> None:
    runner = make_runner(tiny_model)
    loaded = runner._loaded
    assert loaded is not None
    model: Any = loaded.model
    model.held_by = [model]  # as the modules of some models point at each other
    weights = [weakref.ref(parameter) for parameter in model.parameters()]
    del loaded, model
    gc.disable()
    try:
        runner.sleep(2)
        assert [reference for reference in weights if reference() is not None] == []
    finally:
        gc.enable()
