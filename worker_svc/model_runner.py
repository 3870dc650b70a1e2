"""Loads a model and executes steps: request state, input arrays, forward pass, sampling.

Owns the life of a loaded model and the order of a step; the model's side of it is `loaded_model`,
its device's memory `memory_budget`. Implements `step.Runner`. Knows nothing of gRPC, leases or
event loops: the worker calls it on one thread of its own, and torch runs there alone.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch

from pagewire.engine_config import EngineConfig
from pagewire.kit.logs import get_logger
from worker_svc.batch_invariance import check_batch_invariance
from worker_svc.cuda_memory import CudaBudget
from worker_svc.device import activate, ends_if_lost, exit_lost, select_device
from worker_svc.grammar_masks import MaskSource, no_masks
from worker_svc.graphs.choice import GraphBackendFactory, cuda_graph_backend
from worker_svc.input_batch import InputBatch
from worker_svc.loaded_model import LoadedModel, load_model
from worker_svc.memory_budget import CpuBudget, MemoryBudget
from worker_svc.parallel.groups import ALONE, ParallelGroups
from worker_svc.parallel.pipeline_tokens import PipelineTokens
from worker_svc.profiler import region
from worker_svc.prompt_logprobs import gather_prompt_logprobs
from worker_svc.step import (
    ModelInfo,
    ModelRunnerOutput,
    ProgressCallback,
    SchedulerOutput,
    StepTimings,
)
from worker_svc.step_sampling import make_output, prepare_sampling

log = get_logger("worker_svc.model_runner")


class ModelRunner:
    """The tensor side of a worker. `load`, then `allocate_kv_cache`, then steps.

    With several ranks each has a runner of its own, and all run the same steps.
    """

    def __init__(
        self,
        config: EngineConfig,
        groups: ParallelGroups = ALONE,
        make_graph_backend: GraphBackendFactory = cuda_graph_backend,
        exit_lost: Callable[[BaseException], object] = exit_lost,
    ) -> None:
        """Prepare.

        Args:
            config: The engine's.
            groups: Those of this rank.
            make_graph_backend: How a device records graphs, if it does.
            exit_lost: Ends this process, when its device is lost.
        """
        self._config = config
        self._groups = groups
        self._make_graph_backend = make_graph_backend
        self.exit_lost = exit_lost
        self._tokens = PipelineTokens(groups) if groups.layout.pp_size > 1 else None
        self._device: torch.device | None = None
        self._budget: MemoryBudget | None = None
        self._loaded: LoadedModel | None = None
        self._kv_size: tuple[int, int] | None = None
        """num_blocks and block_size of the KV cache that there is."""
        self._batch: InputBatch | None = None

    def load(self, progress: ProgressCallback) -> ModelInfo:
        if self._config.device.num_threads is not None:
            torch.set_num_threads(self._config.device.num_threads)
        try:
            device, budget = self._prepare_device()
            self._loaded = load_model(
                self._config,
                self._groups,
                device,
                budget.weight_limit,
                progress,
                self._make_graph_backend,
            )
            self._check_batch_invariance(self._loaded, progress)
            budget.measure(self._loaded, progress)
        except torch.OutOfMemoryError as error:
            self._loaded = None
            raise MemoryError("the device has too little memory") from error
        return self._loaded.info

    def _check_batch_invariance(self, loaded: LoadedModel, progress: ProgressCallback) -> None:
        if not self._config.model.batch_invariant:
            return
        progress("check_batch_invariance", 0.0)
        has_logits = self._groups.layout.is_last_stage
        try:
            # The other ranks may still load.
            with self._groups.rehearsing():
                check_batch_invariance(loaded, self._config.cache.block_size, has_logits=has_logits)
        except ValueError:
            self._loaded = None
            raise

    def kv_bytes_per_block(self, block_size: int) -> int:
        return self._require_loaded().backend.kv_bytes_per_block(block_size)

    def available_kv_bytes(self) -> int:
        self._require_loaded()
        return self._require_budget().kv_bytes()

    @ends_if_lost
    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        loaded = self._require_loaded()
        if self._kv_size != (num_blocks, block_size):
            self._drop_kv_cache(loaded)
            self._require_budget().check_kv_cache(
                num_blocks, loaded.backend.kv_bytes_per_block(block_size)
            )
        try:
            loaded.backend.allocate_kv_cache(num_blocks, block_size)
            if loaded.make_graph_backend is not None and loaded.graphs is None:
                sizes = loaded.graph_sizes(self._config.scheduler.max_num_seqs, block_size)
                graphs = loaded.make_graphs(sizes)
                graphs.capture(loaded.backend, _log_progress)
                loaded.graphs = graphs
        except torch.OutOfMemoryError as error:
            self._drop_kv_cache(loaded)
            raise MemoryError("the device has too little memory") from error
        self._kv_size = num_blocks, block_size
        self._batch = InputBatch(block_size, loaded.info.max_model_len)

    @ends_if_lost
    def reset(self) -> None:
        # Graphs know where the cache is, so its memory stays for the next one of this size.
        if self._loaded is not None and self._loaded.graphs is None:
            self._drop_kv_cache(self._loaded)
        self._batch = None
        if self._tokens is not None:
            self._tokens.clear()

    @ends_if_lost
    def sleep(self, level: int) -> None:
        self.reset()
        loaded = self._loaded
        if loaded is not None:
            self._drop_kv_cache(loaded)
            if level == 1:
                loaded.move_to_host()
        if level == 2:
            self._loaded = loaded = None
            gc.collect()  # modules may point at each other
        self._require_budget().release()

    @ends_if_lost
    def wake_weights(self, progress: ProgressCallback) -> ModelInfo:
        if self._loaded is None:
            return self.load(progress)
        try:
            self._loaded.move_to_device()
        except torch.OutOfMemoryError as error:
            raise MemoryError("the device has too little memory") from error
        return self._loaded.info

    @ends_if_lost
    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        try:
            with torch.inference_mode():
                return self._execute(scheduler_output, masks)
        except torch.AcceleratorError:
            raise  # the process ends, and its connections with it
        except BaseException:
            # The other ranks may wait for this one in the middle of the step.
            self._groups.leave()
            raise

    def _execute(self, scheduler_output: SchedulerOutput, masks: MaskSource) -> ModelRunnerOutput:
        loaded = self._require_loaded()
        if self._batch is None:
            raise RuntimeError("the KV cache is not allocated: call allocate_kv_cache first")
        begin_ns = time.perf_counter_ns()
        if self._tokens is not None:
            self._tokens.settle(scheduler_output.handles)
        with region("prepare"):
            rows = self._batch.update(scheduler_output)
            live = [row for row in rows if not row.state.is_over]
            if not live:
                return make_output(scheduler_output.step, rows, {}, _Clock(begin_ns).timings())
            inputs = self._batch.make_inputs(live, min_tokens=loaded.min_rows)
        clock = _Clock(begin_ns)
        with region("forward"):
            hidden = loaded.forward(inputs)
        self._batch.advance(live)
        if self._tokens is not None and not self._groups.layout.is_last_stage:
            clock.forward_done()
            self._tokens.expect([row for row in inputs.rows if row.samples])
            return make_output(scheduler_output.step, rows, {}, clock.timings())
        with region("logits"):
            gather_prompt_logprobs(inputs, hidden, loaded.compute_logits, loaded.sampler)
            sampling, states = loaded.sampling_states(inputs, hidden)
            sample = prepare_sampling(
                loaded, self._batch.sampling, scheduler_output, sampling, states, masks
            )
        clock.forward_done()
        with region("sample"):
            sampled = sample()
        if self._tokens is not None:
            self._tokens.send(sampling, sampled)
        return make_output(scheduler_output.step, rows, sampled, clock.timings())

    @ends_if_lost
    def _prepare_device(self) -> tuple[torch.device, MemoryBudget]:
        """The device and its memory; at the first load they are found."""
        groups = self._groups
        device = self._device
        if device is None:
            name, rank = self._config.device.device, groups.layout.rank
            device = self._device = select_device(name, rank, groups.num_ranks_here)
        activate(device)
        if groups is not ALONE:
            groups.device = device
        if self._budget is None:
            if device.type == "cpu":
                self._budget = CpuBudget(self._config, groups)
            else:
                self._budget = CudaBudget(self._config, groups, device)
        return device, self._budget

    def _drop_kv_cache(self, loaded: LoadedModel) -> None:
        loaded.graphs = None
        loaded.backend.free_kv_cache()
        self._kv_size = None
        self._require_budget().release()

    def _require_loaded(self) -> LoadedModel:
        if self._loaded is None:
            raise RuntimeError("no model is loaded: call load first")
        return self._loaded

    def _require_budget(self) -> MemoryBudget:
        if self._budget is None:
            raise RuntimeError("no model is loaded: call load first")
        return self._budget


class _Clock:
    """Stamps of one step; `prepare` ended when it was made."""

    def __init__(self, begin_ns: int) -> None:
        self._begin_ns = begin_ns
        self._prepared_ns = time.perf_counter_ns()
        self._forward_ns = self._prepared_ns

    def forward_done(self) -> None:
        self._forward_ns = time.perf_counter_ns()

    def timings(self) -> StepTimings:
        end_ns = time.perf_counter_ns()
        return StepTimings(
            prepare_ns=self._prepared_ns - self._begin_ns,
            forward_ns=self._forward_ns - self._prepared_ns,
            sample_ns=end_ns - self._forward_ns,
            total_ns=end_ns - self._begin_ns,
        )


def _log_progress(stage: str, fraction: float) -> None:
    """Nobody watches a KV cache being allocated; the log has its beginning and its end."""
    if fraction in (0.0, 1.0):
        log.info("kv_cache_progress", stage=stage, percent=round(100 * fraction))
