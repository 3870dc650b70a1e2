from scheduler_svc.metrics import EngineCollector
from scheduler_svc.pause import PauseMode
from tests.scheduler_svc.test_engine_core import Engine, running


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
