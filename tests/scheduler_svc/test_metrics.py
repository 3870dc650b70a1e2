from dataclasses import fields, replace

from pagewire.engine_config import ObservabilityConfig
from scheduler_svc.metrics import EngineCollector
from scheduler_svc.pause import PauseMode
from tests.scheduler_svc.fakes import make_config
from tests.scheduler_svc.running_engine import Engine, running


def figures_of(engine):
    metrics = EngineCollector(engine.core).collect()
    return {metric.name: metric.samples[0].value for metric in metrics if metric.samples}


async def test_a_pause_and_its_end_are_figures():
    async with running() as engine:
        assert figures_of(engine)["pagewire:engine_paused"] == 0
        await engine.core.pause(PauseMode.WAIT)
        assert figures_of(engine)["pagewire:engine_paused"] == 1
        engine.core.resume()
        assert figures_of(engine)["pagewire:engine_paused"] == 0


async def test_the_state_of_a_sleep_is_a_figure():
    async with running() as engine:
        for level, name in ((0, "awake"), (1, "weights_offloaded"), (2, "discard_all")):
            await engine.core.sleep.sleep(level, PauseMode.ABORT)
            metrics = {metric.name: metric for metric in EngineCollector(engine.core).collect()}
            samples = metrics["pagewire:engine_sleep_state"].samples
            assert [s.labels["sleep_state"] for s in samples if s.value] == [name]


async def test_stalls_are_a_figure():
    async with running() as engine:
        for _ in range(16):
            engine.core.liveness.observe(could_progress=True, has_progress=False)
        assert figures_of(engine)["pagewire:scheduler_stalls"] == 1


def test_an_engine_without_a_worker_has_no_figures_of_requests():
    figures = figures_of(Engine())
    assert figures["pagewire:engine_ready"] == 0
    assert "pagewire:num_requests_running" not in figures


async def test_a_prompt_counts_once_with_the_step_that_gives_its_first_token():
    async with running() as engine:
        # More than a step takes, and a worker that is lost in between.
        request_id = engine.add(range(1, 41), max_tokens=20, ignore_eos=True)
        await engine.client.wait_tokens(request_id, 5)
        engine.executor.lose()
        await engine.client.wait_finished(request_id)
        # One that ends before its first token, and one that had tokens elsewhere.
        engine.executor.go_on.clear()
        engine.core.finish_requests([engine.add(max_tokens=4)])
        resumed = engine.add(
            output_token_ids=[7, 8], is_resumed=True, max_tokens=5, ignore_eos=True
        )
        engine.executor.go_on.set()
        await engine.client.wait_finished(resumed)
        counters = engine.core.counters
        assert counters.prompt_tokens == 40
        assert (counters.iteration_tokens.count, counters.iteration_tokens.sum) == (23, 63)


async def test_the_cache_is_described_by_its_settings_and_sizes():
    async with running() as engine:
        metrics = {metric.name: metric for metric in EngineCollector(engine.core).collect()}
        (sample,) = metrics["pagewire:cache_config_info"].samples
    config, plan = engine.core.config, engine.core.info.kv_cache
    assert sample.value == 1
    assert {field.name for field in fields(config.cache)} <= set(sample.labels)
    assert sample.labels["num_gpu_blocks"] == str(plan.num_blocks)
    concurrency = (plan.num_blocks - 1) * plan.block_size / plan.max_model_len
    assert float(sample.labels["kv_cache_max_concurrency"]) == round(concurrency, 4)
    assert sample.labels["kv_cache_size_tokens"] == str((plan.num_blocks - 1) * plan.block_size)


async def test_lives_of_blocks_are_shown_where_they_are_asked_for():
    observability = ObservabilityConfig(kv_cache_metrics=True, kv_cache_metrics_sample=1.0)
    config = replace(make_config(num_gpu_blocks_override=17), observability=observability)
    async with running(Engine(config)) as engine:
        for first in (1, 1, 20, 40):
            request_id = engine.add(range(first, first + 30), max_tokens=20, ignore_eos=True)
            await engine.client.wait_finished(request_id)
        metrics = {metric.name: metric for metric in EngineCollector(engine.core).collect()}
    for name in ("kv_block_lifetime_seconds", "kv_block_reuse_gap_seconds"):
        samples = metrics[f"pagewire:{name}"].samples
        assert next(s.value for s in samples if s.name.endswith("_count")) > 0


async def test_lives_of_blocks_are_not_shown_otherwise():
    async with running() as engine:
        metrics = {metric.name: metric for metric in EngineCollector(engine.core).collect()}
    assert not metrics["pagewire:kv_block_lifetime_seconds"].samples
