"""Models with sliding windows on the simulated worker: tokens are those of each request alone.

A block table for each group of layers goes over the wire, and the worker reads every window back
through its own: a block that is freed too early or a hit that lacks one changes tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pagewire.engine_config import SpeculativeConfig
from pagewire.sampling_params import SamplingParams
from tests.e2e.completions import TokenRequest, one_by_one, together
from tests.e2e.stack import start_stack
from tests.e2e.test_overlap import make_config, make_requests, running_engine
from tests.e2e.test_requests import is_idle, wait_for_load
from tests.worker_svc.grouped_models import (
    FULL,
    LAYOUTS,
    SLIDING,
    windows_of,
    write_grouped_model,
)
from tests.worker_svc.harness import VOCABULARY, running_worker
from worker_svc.sim.oracle import expected_output

WINDOW = 11


@dataclass(frozen=True)
class Setting:
    """What must not change a token."""

    chunk: int
    crowded: bool
    enable_prefix_caching: bool
    async_scheduling: bool
    method: str


SETTINGS = (
    Setting(16, True, True, True, "none"),
    Setting(16, True, False, False, "none"),
    Setting(64, False, True, True, "ngram"),
    Setting(64, True, True, False, "ngram"),
    Setting(4096, False, False, True, "none"),
)


def num_blocks_of(layer_types: Sequence[str], crowded: bool) -> int:
    """Blocks of 4 tokens; a crowded pool holds little more than one longest request of 128."""
    num_sliding = sum(window > 0 for window in windows_of(layer_types, WINDOW))
    return 40 + 20 * num_sliding if crowded else 4000


def alone(prompt: Sequence[int], params: SamplingParams, layer_types: Sequence[str]) -> list[int]:
    limit = params.max_tokens or 0
    windows = windows_of(layer_types, WINDOW)
    return expected_output(prompt, params, limit, VOCABULARY, windows=windows)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("layer_types", LAYOUTS.values(), ids=LAYOUTS)
async def test_requests_get_the_tokens_that_they_get_alone(
    tmp_path: Path, layer_types: list[str], setting: Setting
) -> None:
    config = make_config(
        write_grouped_model(tmp_path, layer_types, WINDOW),
        async_scheduling=setting.async_scheduling,
        enable_prefix_caching=setting.enable_prefix_caching,
        chunk=setting.chunk,
        num_blocks=num_blocks_of(layer_types, setting.crowded),
    )
    config = replace(config, speculative=SpeculativeConfig(speculative_method=setting.method))
    requests = make_requests(33)
    if setting.method == "ngram":
        # Outputs of three tokens repeat themselves, so that some guesses are right.
        requests = {
            request_id: (prompt, replace(params, allowed_token_ids=(310, 311, 312)))
            for request_id, (prompt, params) in requests.items()
        }
    async with (
        running_worker() as worker,
        running_engine(config, worker.server.address) as engine,
    ):
        for request_id, (prompt, params) in requests.items():
            engine.add(request_id, prompt, params)
        await engine.client.wait_finished(*requests)
        stats = engine.core.make_stats()
    assert stats is not None
    assert (stats.num_accepted_tokens > 0) == (setting.method == "ngram")
    if FULL in layer_types:
        assert (stats.num_preemptions > 0) == setting.crowded
    assert engine.client.token_ids == {
        request_id: alone(*request, layer_types) for request_id, request in requests.items()
    }


def make_token_requests() -> list[TokenRequest]:
    rng = random.Random(11)
    common = tuple(rng.randrange(300, 900) for _ in range(60))
    requests = []
    for number in range(24):
        own = tuple(rng.randrange(300, 900) for _ in range(rng.randint(1, 60)))
        params = SamplingParams(
            temperature=float(number % 2), seed=number, max_tokens=rng.randint(30, 100)
        )
        requests.append(TokenRequest(common[: rng.choice([0, 30, 60])] + own, params))
    return requests


@pytest.mark.parametrize("layout", ["sliding alone", "three groups"])
async def test_four_processes_give_the_tokens_of_each_request_alone(
    tmp_path: Path, layout: str
) -> None:
    layer_types = LAYOUTS[layout]
    requests = make_token_requests()
    expected = [alone(request.prompt, request.params, layer_types) for request in requests]
    # The longest have 220 tokens: 55 blocks of a full group.
    num_blocks = 80 if FULL in layer_types else 30
    with start_stack(
        "--device=sim",
        f"--model={write_grouped_model(tmp_path, layer_types, WINDOW)}",
        "--block-size=4",
        "--max-model-len=256",
        "--max-num-batched-tokens=32",
        "--max-num-seqs=16",
        f"--num-gpu-blocks-override={num_blocks + 20 * layer_types.count(SLIDING)}",
    ) as stack:
        assert await one_by_one(stack.http_url, requests[:4]) == expected[:4]
        assert await together(stack.http_url, requests) == expected
        load = await wait_for_load(stack, is_idle)
    assert load.kv_cache_usage == 0
    assert load.prefix_cache_hits > 0
