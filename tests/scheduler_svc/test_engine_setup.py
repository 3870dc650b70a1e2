"""What an engine's first worker decides, and later ones are held to."""

import pytest

from pagewire.kit.errors import (
    FailedPreconditionError,
)
from scheduler_svc.engine_info import engine_fingerprint
from scheduler_svc.engine_state import EngineState
from tests.scheduler_svc.fakes import make_config, make_facts
from tests.scheduler_svc.running_engine import Engine, running


async def test_a_worker_with_another_model_is_not_taken():
    async with running() as engine:
        engine.executor.facts = make_facts(weights_digest="other")
        engine.executor.lose()
        await engine.wait_state(EngineState.RECOVERING)
        await engine.executor.wait_initialized(4)
        assert engine.core.state is EngineState.RECOVERING
        engine.executor.facts = make_facts()
        await engine.wait_state(EngineState.READY, times=2)


async def test_a_cache_too_small_ends_the_engine():
    engine = Engine(make_config(num_gpu_blocks_override=2))
    with pytest.raises(FailedPreconditionError, match="max seq len"):
        await engine.core.run()


async def test_the_fingerprint_covers_what_decides_tokens():
    facts = make_facts()
    others = [
        make_facts(weights_digest="x"),
        make_facts(dtype="bfloat16"),
        make_facts(sampler_version="2"),
    ]
    fingerprints = {engine_fingerprint(item) for item in (facts, *others)}
    assert len(fingerprints) == 4
