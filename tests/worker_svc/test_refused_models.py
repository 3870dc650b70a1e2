"""What Initialize refuses: a typed status that says what is wrong; the worker stays blank."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import load_file, save_file

from pagewire.engine_config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagewire.kit.errors import from_rpc_error
from tests.worker_svc import tiny_models
from tests.worker_svc.harness import connected, running_worker
from worker_svc import memory, memory_budget, model_load

WEIGHTS = "model.safetensors"


def truncate(directory: Path) -> None:
    path = directory / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def break_index(directory: Path) -> None:
    (directory / f"{WEIGHTS}.index.json").write_text('{"weight_map": {"lm_head.weight": 3}}')


def change_tensor(change: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / WEIGHTS)
        changed = change(tensors.pop("model.norm.weight"))
        if changed is not None:
            tensors["model.norm.weight"] = changed
        save_file(tensors, directory / WEIGHTS)

    return apply


def set_config(**fields: Any) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return apply


CASES = [
    pytest.param(truncate, f"{WEIGHTS}: tensor ", id="truncated file"),
    pytest.param(break_index, "index.json says that tensor lm_head.weight", id="damaged index"),
    pytest.param(
        change_tensor(lambda norm: norm.long()),
        f"{WEIGHTS}: tensor model.norm.weight has unsupported type I64",
        id="wrong type",
    ),
    pytest.param(
        change_tensor(lambda norm: norm.bool()),
        f"{WEIGHTS}: tensor model.norm.weight has type bool, no weights",
        id="a mask for weights",
    ),
    pytest.param(
        change_tensor(lambda norm: norm[:-1].clone()),
        f"{WEIGHTS}: tensor model.norm.weight has shape [63]",
        id="wrong shape",
    ),
    pytest.param(change_tensor(lambda norm: None), "missing: model.norm.weight", id="missing"),
    pytest.param(
        set_config(num_hidden_layers=1),
        "surplus: model.layers.1.input_layernorm.weight",
        id="surplus",
    ),
    pytest.param(
        set_config(architectures=["NobodyForCausalLM"], model_type="nobody"),
        "NobodyForCausalLM",
        id="unknown architecture",
    ),
]


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    tiny_models.write_tiny_model(tmp_path)
    return EngineConfig(
        model=ModelConfig(model=str(tmp_path), dtype="float32"),
        cache=CacheConfig(kv_cache_memory_bytes=2**20),
        device=DeviceConfig(device="cpu", num_threads=1),
    )


async def assert_refused(config: EngineConfig, reason: str, *parts: str) -> None:
    async with running_worker() as server, connected(server) as scheduler:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scheduler.initialize(config)
        error = from_rpc_error(caught.value)
        assert error.reason == reason
        assert all(part in error.message for part in parts), error.message
        status = await scheduler.status()
        assert (status.state, status.lease_holder) == (1, "")


@pytest.mark.parametrize(("damage", "text"), CASES)
async def test_a_model_that_cannot_be_loaded(
    config: EngineConfig, damage: Callable[[Path], None], text: str
) -> None:
    damage(Path(config.model.model))
    await assert_refused(config, model_load.LOAD_FAILED, text)


@pytest.mark.parametrize("model_impl", ["pagewire", "transformers"])
async def test_too_little_memory_for_the_weights(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, model_impl: Any
) -> None:
    monkeypatch.setattr(memory_budget, "free_memory_bytes", lambda: 100_000)
    chosen = replace(config, model=replace(config.model, model_impl=model_impl))
    await assert_refused(chosen, memory.WEIGHTS_REASON, "are missing", "--quantization")


async def test_too_little_memory_for_the_smallest_kv_cache(config: EngineConfig) -> None:
    small = replace(config, cache=replace(config.cache, kv_cache_memory_bytes=1000))
    await assert_refused(small, memory.REASON, "are missing", "--kv-cache-memory-bytes")
