"""Steps that are replayed against steps that are run: all of it but the recording, on a CPU."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagewire.engine_config import DeviceConfig, EngineConfig, ModelConfig, SchedulerConfig
from pagewire.sampling_params import SamplingParams
from tests.worker_svc.graphs.rerun import RerunBackend
from tests.worker_svc.runner_factories import make_prompts
from tests.worker_svc.step_driver import DriverRequest, StepDriver
from tests.worker_svc.tiny_models import write_tiny_model
from worker_svc.attention.base import DecodeTensors
from worker_svc.graphs.choice import choose_graph_backend
from worker_svc.graphs.inputs import GraphInputs
from worker_svc.graphs.runner import GraphRunner
from worker_svc.graphs.sizes import GraphSize, GraphSizes
from worker_svc.input_batch import StepInputs
from worker_svc.model_runner import ModelRunner

ASKING = SamplingParams(temperature=0.0, logprobs=1)
CPU = torch.device("cpu")


def make_config(directory: Path) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model=str(directory), dtype="float32"),
        scheduler=SchedulerConfig(max_num_seqs=6),
        device=DeviceConfig(device="cpu", num_threads=1),
    )


def load_runner(config: EngineConfig, backend: RerunBackend | None) -> ModelRunner:
    runner = ModelRunner(config)
    runner.load(lambda stage, fraction: None)
    assert runner._loaded is not None
    runner._loaded.make_graph_backend = None if backend is None else lambda: backend
    return runner


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_tiny_model(tmp_path)
    return tmp_path


def run(runner: ModelRunner, lengths: list[int], **options: Any) -> list[DriverRequest]:
    driver = StepDriver(runner, num_blocks=128, block_size=16, **options)
    requests = [
        driver.add(prompt, ASKING, max_tokens=7 + index, preempt_after=3 if index == 1 else None)
        for index, prompt in enumerate(make_prompts(lengths))
    ]
    driver.run()
    return requests


def test_replayed_steps_give_what_steps_give(directory: Path) -> None:
    """Rows end one after another, so that most graphs are padded; one request comes back."""
    backend = RerunBackend()
    lengths = [3, 40, 17, 90, 5]
    replayed = run(load_runner(make_config(directory), backend), lengths, chunk=30)
    plain = run(load_runner(make_config(directory), None), lengths, chunk=30)
    assert [r.output_token_ids for r in replayed] == [r.output_token_ids for r in plain]
    for one, other in zip(replayed, plain, strict=True):
        for got, expected in zip(one.logprobs, other.logprobs, strict=True):
            assert got == pytest.approx(expected, abs=1e-4)
    assert backend.num_recorded == len(GraphSizes.of(6, 256, 16))
    assert backend.num_replayed > 4


def test_only_steps_of_single_tokens_are_replayed(directory: Path) -> None:
    backend = RerunBackend()
    driver = StepDriver(load_runner(make_config(directory), backend), num_blocks=128)

    def step() -> int:
        before = backend.num_replayed
        driver.step()
        return backend.num_replayed - before

    driver.add([5] * 20, max_tokens=4)
    assert step() == 0  # a prompt
    assert step() == 1
    driver.add([6] * 9, max_tokens=2)
    assert step() == 0  # a prompt beside a token
    assert step() == 1
    for _ in range(7):
        driver.add([7], max_tokens=2)
    assert step() == 0  # more rows than any graph has


def test_drafts_are_not_replayed(directory: Path) -> None:
    backend = RerunBackend()
    driver = StepDriver(load_runner(make_config(directory), backend), num_blocks=128)
    driver.add([5] * 20, max_tokens=4, propose=lambda output: (1, 2))
    driver.step()
    driver.step()
    assert backend.num_replayed == 0


def test_the_null_block_and_other_blocks_are_not_written_by_padding(directory: Path) -> None:
    runner = load_runner(make_config(directory), RerunBackend())
    run(runner, [3, 40, 17])
    assert runner._loaded is not None
    attention: Any = runner._loaded.backend
    for tensor in (*attention._keys, *attention._values):
        assert not tensor[0].any()


def test_graphs_end_with_the_cache_they_were_recorded_over(directory: Path) -> None:
    backend = RerunBackend()
    runner = load_runner(make_config(directory), backend)
    run(runner, [3, 40])
    num_sizes = backend.num_recorded
    runner.reset()
    run(runner, [3, 40])
    assert backend.num_recorded == num_sizes  # the same size of cache
    runner.allocate_kv_cache(64, 16)
    assert backend.num_recorded == 2 * num_sizes
    runner.sleep(1)
    assert runner._loaded is not None
    assert runner._loaded.graphs is None


def test_progress_goes_from_nothing_to_all(directory: Path) -> None:
    runner = load_runner(make_config(directory), RerunBackend())
    runner.allocate_kv_cache(16, 16)
    loaded, told = runner._loaded, []
    assert loaded is not None
    graphs = loaded.make_graphs(loaded.graph_sizes(6, 16))
    graphs.capture(loaded.backend, lambda stage, fraction: told.append((stage, fraction)))
    assert {stage for stage, _ in told} == {"capture_graphs"}
    fractions = [fraction for _, fraction in told]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)


def test_what_a_graph_reads_lives_as_long_as_the_graph(directory: Path) -> None:
    """A recorded graph knows addresses; nothing but the graphs' owner holds what is there."""
    runner = load_runner(make_config(directory), RerunBackend())
    runner.allocate_kv_cache(16, 16)
    loaded = runner._loaded
    assert loaded is not None
    made: list[weakref.ref[Any]] = []

    class Noting:
        def prepare_decode(self, tensors: DecodeTensors) -> Any:
            decode = loaded.backend.prepare_decode(tensors)
            made.append(weakref.ref(decode))
            return decode

    class Forgetting:
        def record(self, work: Any) -> Any:
            output = work()
            return lambda: output

    sizes = loaded.graph_sizes(6, 16)
    graphs: GraphRunner | None = GraphRunner(loaded.model, sizes, CPU, Forgetting())
    assert graphs is not None
    attention: Any = Noting()
    graphs.capture(attention, lambda stage, fraction: None)
    gc.collect()
    assert len(made) == len(sizes)
    assert all(reference() is not None for reference in made)
    graphs = None
    gc.collect()
    assert all(reference() is None for reference in made)


def test_what_is_written_is_what_the_view_shows() -> None:
    largest, size = GraphSize(8, 64), GraphSize(4, 32)
    memory = GraphInputs(largest, CPU)
    view = memory.view(size)
    inputs = _inputs(num_rows=3, num_blocks=2)
    memory.write(inputs, size)
    assert view.token_ids.tolist() == [11, 12, 13, 0]
    assert view.positions.tolist() == [20, 21, 22, 0]
    assert view.attention.slot_mapping.tolist() == [1, 2, 3, -1]
    assert view.attention.seq_lens.tolist() == [21, 22, 23, 0]
    tables = view.attention.block_tables
    assert (tables.shape, tables.is_contiguous()) == ((4, 32), True)
    assert tables[:3, :2].tolist() == inputs.block_tables.tolist()
    assert not tables[3].any()
    assert not tables[:, 2:].any()
    # Nothing of a larger step before shows.
    memory.write(_inputs(num_rows=8, num_blocks=64), largest)
    memory.write(inputs, size)
    assert view.attention.seq_lens.tolist() == [21, 22, 23, 0]
    assert not tables[:, 2:].any()


def _inputs(num_rows: int, num_blocks: int) -> StepInputs:
    ints = np.arange(num_rows)

    class Row:
        def __init__(self, index: int) -> None:
            self.end = 21 + index

    rows: Any = [Row(index) for index in range(num_rows)]
    return StepInputs(
        rows=rows,
        token_ids=ints + 11,
        positions=ints + 20,
        slot_mapping=ints + 1,
        block_tables=np.arange(1, 1 + num_rows * num_blocks).reshape(num_rows, num_blocks),
        query_start_loc=range(num_rows + 1),
        num_single_rows=num_rows,
    )


def test_eager_is_chosen_where_it_must_be(directory: Path) -> None:
    runner = load_runner(make_config(directory), None)
    loaded = runner._loaded
    assert loaded is not None
    config, backend = make_config(directory), RerunBackend()

    def chosen(config: EngineConfig, device: str, *, captures: bool) -> Any:
        attention: Any = type("Attention", (), {"can_capture": captures})()
        return choose_graph_backend(
            config, loaded.model, attention, torch.device(device), lambda device: backend
        )

    assert chosen(config, "cuda", captures=True)() is backend
    assert chosen(config, "cuda", captures=False) is None
    assert chosen(config, "cpu", captures=True) is None
    eager = replace(config, device=replace(config.device, enforce_eager=True))
    assert chosen(eager, "cuda", captures=True) is None
    several = replace(config, parallel=replace(config.parallel, tensor_parallel_size=2))
    assert chosen(several, "cuda", captures=True) is None
