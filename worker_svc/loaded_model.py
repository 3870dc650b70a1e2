"""A model with its weights, and the backend, sampler and graphs that go with it on one device.

Owns the way from the arrays of a step to hidden states and logits: by a graph where one fits, else
as it is. Knows nothing of memory limits and of a step's requests beyond their rows. Made and used
by the model runner.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from pagewire.engine_config import EngineConfig
from pagewire.model_source import ModelFormat, resolve_model
from worker_svc.attention.base import AttentionBackend
from worker_svc.attention.selector import make_attention_backend
from worker_svc.attention.torch_backend import MIN_GEMM_ROWS
from worker_svc.device import put_list
from worker_svc.dtypes import select_cuda_dtype, select_dtype
from worker_svc.graphs.choice import GraphBackendFactory, choose_graph_backend
from worker_svc.graphs.runner import GraphBackend, GraphRunner
from worker_svc.graphs.sizes import GraphSizes
from worker_svc.input_batch import StepInputs
from worker_svc.models.base import CausalModel, ChoosesGreedily, GreedyChooser
from worker_svc.models.build import BuiltModel, build_model
from worker_svc.models.packed_build import build_packed, choose_packed
from worker_svc.parallel.groups import ParallelGroups
from worker_svc.request_state import BatchRow
from worker_svc.sampler.base import StepSampler
from worker_svc.sampler.device_sampler import DeviceSampler
from worker_svc.sampler.sampler import Sampler
from worker_svc.step import ModelInfo, ProgressCallback
from worker_svc.step_tensors import StepTensors
from worker_svc.torch_import import complete_torch
from worker_svc.weight_storage import move_to_device, move_to_host
from worker_svc.weights.dummy_source import DummySource
from worker_svc.weights.load import weights_digest
from worker_svc.weights.source import WeightSource, open_weights


class LoadedModel:
    """One rank's part of a model on its device."""

    def __init__(
        self,
        model: CausalModel,
        info: ModelInfo,
        device: torch.device,
        backend: AttentionBackend,
        sampler: StepSampler,
        make_graph_backend: Callable[[], GraphBackend] | None = None,
    ) -> None:
        self.model = model
        self.info = info
        self.device = device
        self.backend = backend
        self.sampler = sampler
        self.make_graph_backend = make_graph_backend
        """Makes what records graphs; None: none are recorded."""
        self.choose_greedily: GreedyChooser | None = (
            model.choose_greedily if isinstance(model, ChoosesGreedily) else None
        )
        """See `ChoosesGreedily`; None: tokens are chosen from logits alone."""
        self.graphs: GraphRunner | None = None
        """Over the KV cache that there is."""
        # On a CPU the same numbers are promised in float32 whatever the batch.
        is_exact = device.type == "cpu" and info.dtype == "float32"
        is_exact &= info.attention_backend != "cpu"  # whose products treat each row alone
        self.min_rows = MIN_GEMM_ROWS if is_exact else 1

    def move_to_host(self) -> None:
        """Put the weights into host memory; on a CPU they are there already."""
        if self.device.type != "cpu":
            move_to_host(self._module())

    def move_to_device(self) -> None:
        """Bring the weights back from host memory."""
        if self.device.type != "cpu":
            move_to_device(self._module(), self.device)

    def graph_sizes(self, max_num_seqs: int, block_size: int) -> GraphSizes:
        """What graphs are recorded for."""
        return GraphSizes.of(max_num_seqs, self.info.max_model_len, block_size)

    def make_graphs(self, sizes: GraphSizes) -> GraphRunner:
        """Graphs that are not recorded yet; there is a way to record them."""
        if self.make_graph_backend is None:
            raise RuntimeError("this model records no graphs")
        return GraphRunner(self.model, sizes, self.device, self.make_graph_backend())

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Hidden states, at least [num_scheduled_tokens, hidden_size]; writes keys and values."""
        if self.graphs is not None:
            hidden = self.graphs.run(inputs)
            if hidden is not None:
                return hidden
        tensors = StepTensors.of(inputs, self.device)
        attention = self.backend.begin_step(tensors.attention)
        return self.model(tensors.token_ids, tensors.positions, attention)

    def sampling_states(
        self, inputs: StepInputs, hidden: torch.Tensor
    ) -> tuple[list[BatchRow], torch.Tensor]:
        """The rows that sample, and the states of their last known token and each of their drafts.

        States are [num_sampling_rows + num_drafts, hidden_size], row after row.
        """
        places = [place for place, row in enumerate(inputs.rows) if row.samples]
        rows = [inputs.rows[place] for place in places]
        tokens: list[int] = []
        for place, row in zip(places, rows, strict=True):
            end = inputs.query_start_loc[place + 1]
            tokens.extend(range(end - 1 - row.num_drafts, end))
        if tokens == list(range(len(tokens))):
            return rows, hidden[: len(tokens)]
        return rows, hidden[put_list(tokens, self.device)]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32; fewer rows than the GEMM needs are filled up."""
        num_rows = len(hidden)
        if 0 < num_rows < self.min_rows:
            hidden = hidden[[*range(num_rows), *[0] * (self.min_rows - num_rows)]]
        return self.model.compute_logits(hidden)[:num_rows]

    def _module(self) -> nn.Module:
        if not isinstance(self.model, nn.Module):
            raise TypeError("the model is no module")
        return self.model


def load_model(
    config: EngineConfig,
    groups: ParallelGroups,
    device: torch.device,
    weight_limit: Callable[[], int],
    progress: ProgressCallback,
    make_graph_backend: GraphBackendFactory,
) -> LoadedModel:
    """This rank's part of the configured model, on its device.

    Args:
        config: The engine's.
        groups: This rank's.
        device: Where it runs.
        weight_limit: Bytes that weights may take.
        progress: See `ProgressCallback`.
        make_graph_backend: How the device records graphs, if it does.

    Raises:
        ValueError: The model cannot be loaded or run so; the message says what to change.
    """
    source = open_source(config)
    packed = choose_packed(config, source, device)
    backend: AttentionBackend
    if packed is not None:
        name, dtype = "cpu", torch.float32
        built, backend = build_packed(packed, config, weight_limit, progress)
    else:
        complete_torch()
        if device.type == "cpu":
            dtype = select_dtype(config.model)
        else:
            dtype = select_cuda_dtype(config.model, source.config)
        built = build_model(source, config.model, dtype, progress, groups, device, weight_limit)
        spec = built.model.attention_spec
        name, backend = make_attention_backend(config, spec, dtype, device)
    info = _model_info(built, source, dtype, name, device, config.model.batch_invariant)
    kind: Any = Sampler if device.type == "cpu" else DeviceSampler
    sampler: StepSampler = kind(info.eos_token_ids, config.model.logprobs_mode)
    recorder = choose_graph_backend(config, built.model, backend, device, make_graph_backend)
    return LoadedModel(built.model, info, device, backend, sampler, recorder)


def open_source(config: EngineConfig) -> WeightSource:
    """The configured checkpoint, or what stands for it with --load-format dummy.

    Raises:
        ValueError: It is of another format, or damaged.
    """
    load_format = config.load.load_format
    model = resolve_model(config.model.model, config.load.revision)
    if load_format == "dummy":
        return DummySource.of(model)
    formats = {"safetensors": ModelFormat.HUGGING_FACE, "gguf": ModelFormat.GGUF}
    if formats.get(load_format, model.format) is not model.format:
        found = model.format.value
        raise ValueError(f"load_format is {load_format}, the model is {found}: use auto")
    return open_weights(model)


def _model_info(
    built: BuiltModel,
    source: WeightSource,
    dtype: torch.dtype,
    attention_backend: str,
    device: torch.device,
    batch_invariant: bool,
) -> ModelInfo:
    shape, attention = built.shape, built.model.attention_spec
    # Backends add up in orders of their own, and so do products that no batch may change.
    form = "\0".join((built.form, attention_backend, f"batch_invariant={batch_invariant}"))
    return ModelInfo(
        architecture=shape.architecture,
        vocab_size=shape.vocab_size,
        max_model_len=built.max_model_len,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=attention.head_dim,
        hidden_size=shape.hidden_size,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        attention_backend=attention_backend,
        eos_token_ids=shape.eos_token_ids,
        bos_token_id=shape.bos_token_id,
        # Weights that layers share count once.
        weight_bytes=sum(parameter.nbytes for parameter in built.model.parameters()),
        weights_digest=weights_digest(source, form),
        default_sampling=source.default_sampling,
    )
