"""Loads a model and executes steps: request state, input arrays, forward pass, sampling.

Owns the model, the attention backend with its KV cache, the input batch and the sampler. Implements
`step.Runner`. Knows nothing of gRPC, leases or event loops: the worker calls it on one thread of
its own, and torch runs there alone.
"""

from __future__ import annotations

import gc
import time

import torch

from pagewire.engine_config import EngineConfig
from pagewire.model_source import ModelFormat, resolve_model
from worker_svc.activation_profile import activation_bytes
from worker_svc.attention.base import AttentionBackend, AttentionMetadata
from worker_svc.attention.selector import make_attention_backend
from worker_svc.attention.torch_backend import MIN_GEMM_ROWS
from worker_svc.cpu_memory import available_kv_bytes
from worker_svc.dtypes import select_dtype
from worker_svc.grammar_masks import MaskSource, no_masks
from worker_svc.input_batch import InputBatch, StepInputs
from worker_svc.memory_profile import LargestStep
from worker_svc.models.base import CausalModel
from worker_svc.models.build import BuiltModel, build_model
from worker_svc.parallel.groups import ALONE, ParallelGroups
from worker_svc.parallel.pipeline_tokens import PipelineTokens
from worker_svc.prompt_logprobs import gather_prompt_logprobs
from worker_svc.request_state import BatchRow
from worker_svc.sampler.sampler import Sampler
from worker_svc.step import (
    ModelInfo,
    ModelRunnerOutput,
    ProgressCallback,
    SchedulerOutput,
    StepTimings,
)
from worker_svc.step_sampling import make_output, sample_rows
from worker_svc.weights.load import weights_digest
from worker_svc.weights.source import WeightSource, open_weights


class ModelRunner:
    """The tensor side of a worker on a CPU. `load`, then `allocate_kv_cache`, then steps.

    With several ranks each has a runner of its own, and all run the same steps.
    """

    def __init__(self, config: EngineConfig, groups: ParallelGroups = ALONE) -> None:
        self._config = config
        self._groups = groups
        self._tokens = PipelineTokens(groups) if groups.layout.pp_size > 1 else None
        self._loaded: _LoadedModel | None = None
        self._activation_bytes = 0
        """What a largest step takes; 0: not measured."""
        self._batch: InputBatch | None = None

    def load(self, progress: ProgressCallback) -> ModelInfo:
        if self._config.device.num_threads is not None:
            torch.set_num_threads(self._config.device.num_threads)
        model = resolve_model(self._config.model.model, self._config.load.revision)
        _check_load_format(self._config.load.load_format, model.format)
        source = open_weights(model)
        self._loaded = _LoadedModel.from_source(source, self._config, progress, self._groups)
        is_sized = self._config.cache.kv_cache_memory_bytes is not None
        if self._activation_bytes == 0 and not is_sized:
            progress("profile_memory", 0.0)
            # The other ranks may still load, or have measured already.
            with self._groups.rehearsing():
                self._activation_bytes = activation_bytes(
                    self._loaded,
                    LargestStep.of(self._config),
                    self._config.cache.block_size,
                    self._loaded.info.max_model_len,
                    samples=self._groups.layout.is_last_stage,
                )
        return self._loaded.info

    def kv_bytes_per_block(self, block_size: int) -> int:
        loaded = self._require_loaded()
        return loaded.backend.kv_bytes_per_block(block_size)

    def available_kv_bytes(self) -> int:
        self._require_loaded()
        num_ranks = self._groups.num_ranks_here
        return available_kv_bytes(self._config.cache, self._activation_bytes, num_ranks)

    def allocate_kv_cache(self, num_blocks: int, block_size: int) -> None:
        loaded = self._require_loaded()
        loaded.backend.allocate_kv_cache(num_blocks, block_size)
        self._batch = InputBatch(block_size, loaded.info.max_model_len)

    def reset(self) -> None:
        if self._loaded is not None:
            self._loaded.backend.free_kv_cache()
        self._batch = None
        if self._tokens is not None:
            self._tokens.clear()

    def sleep(self, level: int) -> None:
        self.reset()
        if level == 2:
            self._loaded = None
            gc.collect()  # modules may point at each other

    def wake_weights(self, progress: ProgressCallback) -> ModelInfo:
        # On a CPU level 1 leaves them where they are.
        return self.load(progress) if self._loaded is None else self._loaded.info

    @torch.inference_mode()
    def execute(
        self, scheduler_output: SchedulerOutput, masks: MaskSource = no_masks
    ) -> ModelRunnerOutput:
        try:
            return self._execute(scheduler_output, masks)
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
        rows = self._batch.update(scheduler_output)
        live = [row for row in rows if not row.state.is_over]
        if not live:
            return make_output(scheduler_output.step, rows, {}, _Clock(begin_ns).timings())
        inputs = self._batch.make_inputs(live, min_tokens=loaded.min_rows)
        clock = _Clock(begin_ns)
        hidden = loaded.forward(inputs)
        self._batch.advance(live)
        if self._tokens is not None and not self._groups.layout.is_last_stage:
            clock.forward_done()
            self._tokens.expect([row for row in inputs.rows if row.samples])
            return make_output(scheduler_output.step, rows, {}, clock.timings())
        gather_prompt_logprobs(inputs, hidden, loaded.compute_logits, loaded.sampler.scratch)
        sampling, logits = loaded.logits(inputs, hidden)
        clock.forward_done()
        sampled = sample_rows(
            loaded.sampler, self._batch.sampling, scheduler_output, sampling, logits, masks
        )
        if self._tokens is not None:
            self._tokens.send(sampling, sampled)
        return make_output(scheduler_output.step, rows, sampled, clock.timings())

    def _require_loaded(self) -> _LoadedModel:
        if self._loaded is None:
            raise RuntimeError("no model is loaded: call load first")
        return self._loaded


class _LoadedModel:
    """A model with its weights, and the backend and sampler that go with it."""

    def __init__(
        self,
        model: CausalModel,
        info: ModelInfo,
        dtype: torch.dtype,
        backend: AttentionBackend,
        sampler: Sampler,
    ) -> None:
        self.model = model
        self.info = info
        self.backend = backend
        self.sampler = sampler
        # In float32 the same numbers are promised whatever the batch.
        self.min_rows = MIN_GEMM_ROWS if dtype == torch.float32 else 1

    @classmethod
    def from_source(
        cls,
        source: WeightSource,
        config: EngineConfig,
        progress: ProgressCallback,
        groups: ParallelGroups,
    ) -> _LoadedModel:
        dtype = select_dtype(config.model)
        built = build_model(source, config.model, dtype, progress, groups)
        spec = built.model.attention_spec
        name, backend = make_attention_backend(config, spec, dtype, torch.device("cpu"))
        info = _model_info(built, source, dtype, name)
        sampler = Sampler(info.eos_token_ids, config.model.logprobs_mode)
        return cls(built.model, info, dtype, backend, sampler)

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size]; writes the step's keys and values."""
        attention = self.backend.begin_step(
            AttentionMetadata(
                slot_mapping=torch.from_numpy(inputs.slot_mapping),
                block_tables=torch.from_numpy(inputs.block_tables),
                seq_lens=inputs.seq_lens,
                query_start_loc=inputs.query_start_loc,
                num_single_rows=inputs.num_single_rows,
            )
        )
        return self.model(
            torch.from_numpy(inputs.token_ids), torch.from_numpy(inputs.positions), attention
        )

    def logits(
        self, inputs: StepInputs, hidden: torch.Tensor
    ) -> tuple[list[BatchRow], torch.Tensor]:
        """The rows that sample, and logits of their last known token and of each of their drafts.

        Logits are [num_sampling_rows + num_drafts, vocab_size] float32, row after row.
        """
        places = [place for place, row in enumerate(inputs.rows) if row.samples]
        rows = [inputs.rows[place] for place in places]
        tokens: list[int] = []
        for place, row in zip(places, rows, strict=True):
            end = inputs.query_start_loc[place + 1]
            tokens.extend(range(end - 1 - row.num_drafts, end))
        return rows, self.compute_logits(hidden[tokens])

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32; fewer rows than the GEMM needs are filled up."""
        num_rows = len(hidden)
        if 0 < num_rows < self.min_rows:
            hidden = hidden[[*range(num_rows), *[0] * (self.min_rows - num_rows)]]
        return self.model.compute_logits(hidden)[:num_rows]


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


def _check_load_format(load_format: str, found: ModelFormat) -> None:
    formats = {"safetensors": ModelFormat.HUGGING_FACE, "gguf": ModelFormat.GGUF}
    if load_format == "dummy":
        raise ValueError("load_format dummy is not supported so far: use auto")
    if formats.get(load_format, found) is not found:
        raise ValueError(f"load_format is {load_format}, the model is {found.value}: use auto")


def _model_info(
    built: BuiltModel, source: WeightSource, dtype: torch.dtype, attention_backend: str
) -> ModelInfo:
    shape, attention = built.shape, built.model.attention_spec
    return ModelInfo(
        architecture=shape.architecture,
        vocab_size=shape.vocab_size,
        max_model_len=built.max_model_len,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=attention.head_dim,
        hidden_size=shape.hidden_size,
        dtype=str(dtype).removeprefix("torch."),
        attention_backend=attention_backend,
        eos_token_ids=shape.eos_token_ids,
        bos_token_id=shape.bos_token_id,
        # Weights that layers share count once.
        weight_bytes=sum(parameter.nbytes for parameter in built.model.parameters()),
        weights_digest=weights_digest(source, built.form),
        default_sampling=source.default_sampling,
    )
