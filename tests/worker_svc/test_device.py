"""Which device a rank gets; CUDA as torch would tell of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.engine_config import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagewire.kit.errors import FailedPreconditionError
from tests.worker_svc.step_driver import StepDriver
from tests.worker_svc.tiny_models import write_tiny_model
from worker_svc.device import (
    LOST_EXIT_CODE,
    NO_CUDA,
    exit_lost,
    put,
    put_list,
    select_device,
)
from worker_svc.model_runner import ModelRunner


@pytest.fixture
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    see_devices(monkeypatch, 4)


def see_devices(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


def test_auto_is_cuda_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    see_devices(monkeypatch, 1)
    assert select_device("auto") == torch.device("cuda", 0)
    assert select_device("cpu") == torch.device("cpu")
    see_devices(monkeypatch, 0)
    assert select_device("auto") == torch.device("cpu")


@pytest.mark.usefixtures("four_devices")
def test_ranks_of_a_machine_take_its_devices_in_turn() -> None:
    chosen = [select_device("cuda", rank, num_ranks_here=4).index for rank in range(4)]
    assert chosen == [0, 1, 2, 3]


@pytest.mark.usefixtures("four_devices")
def test_more_ranks_than_devices_are_refused() -> None:
    with pytest.raises(FailedPreconditionError, match="5 workers on this machine") as caught:
        select_device("cuda", 4, num_ranks_here=5)
    assert caught.value.reason == NO_CUDA


def test_a_worker_that_was_given_one_device_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    see_devices(monkeypatch, 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert select_device("cuda", 3, num_ranks_here=4) == torch.device("cuda", 0)


def test_ranks_do_not_share_the_one_device_of_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    see_devices(monkeypatch, 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(FailedPreconditionError, match="1 are visible: set --tensor-parallel-size"):
        select_device("cuda", 1, num_ranks_here=2)


def test_on_a_cpu_an_array_is_its_own_tensor() -> None:
    array = np.arange(3)
    tensor = put(array, torch.device("cpu"))
    array[0] = 7
    assert tensor.tolist() == [7, 1, 2]
    assert put_list([4, 5], torch.device("cpu")).dtype == torch.int64


def load_runner(directory: Path, ended: list[BaseException]) -> ModelRunner:
    write_tiny_model(directory)
    config = EngineConfig(
        model=ModelConfig(model=str(directory), dtype="float32"),
        cache=CacheConfig(kv_cache_memory_bytes=2**20),
        device=DeviceConfig(device="cpu", num_threads=1),
    )
    runner = ModelRunner(config, exit_lost=ended.append)
    runner.load(lambda stage, fraction: None)
    return runner


def test_a_device_that_is_lost_between_steps_ends_the_process(tmp_path: Path) -> None:
    """A step of which nothing is read back may have failed unseen."""
    ended: list[BaseException] = []
    runner = load_runner(tmp_path, ended)
    loaded: Any = runner._loaded

    def fail(*arguments: object) -> None:
        raise torch.AcceleratorError("an illegal memory access")

    loaded.backend.allocate_kv_cache = loaded.backend.free_kv_cache = fail
    loaded.move_to_device = fail
    calls: dict[str, Callable[[], object]] = {
        "allocate": lambda: runner.allocate_kv_cache(8, 16),
        "reset": runner.reset,
        "sleep": lambda: runner.sleep(1),
        "wake": lambda: runner.wake_weights(lambda stage, fraction: None),
    }
    for name, call in calls.items():
        before = len(ended)
        with pytest.raises(torch.AcceleratorError):
            call()
        assert len(ended) > before, name


def test_a_step_whose_device_is_lost_ends_the_process(tmp_path: Path) -> None:
    ended: list[BaseException] = []
    runner = load_runner(tmp_path, ended)
    driver = StepDriver(runner)
    driver.add([5, 6])
    assert runner._loaded is not None

    def fail(inputs: object) -> torch.Tensor:
        raise torch.AcceleratorError("an illegal memory access")

    runner._loaded.forward = fail  # type: ignore[method-assign]
    with pytest.raises(torch.AcceleratorError):
        driver.step()
    assert len(ended) == 1


def test_a_lost_device_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr("worker_svc.device.exit_now", codes.append)
    exit_lost(RuntimeError("an illegal memory access"))
    assert codes == [LOST_EXIT_CODE]
