"""From a checkpoint to a model with its weights: our own module or the Transformers backend.

Owns the choice and the order of the steps; the model runner calls it once a load. The backend and
transformers itself are imported only where they are chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pagewire.engine_config import ModelConfig
from pagewire.kit.logs import get_logger
from worker_svc.cpu_memory import free_memory_bytes
from worker_svc.device import CPU
from worker_svc.layers.linear import quantize_linears
from worker_svc.layers.products import ProductChoice, mkl_is_slow
from worker_svc.memory import CPU_ADVICE, CUDA_ADVICE, check_weights
from worker_svc.models.base import CausalModel
from worker_svc.models.config import LlamaConfig, UnsupportedModelError
from worker_svc.models.llama import LlamaForCausalLM
from worker_svc.models.registry import Implementation, model_class
from worker_svc.models.shape import ModelShape, read_implementation, read_shape
from worker_svc.parallel.groups import ALONE, ParallelGroups
from worker_svc.step import ProgressCallback
from worker_svc.weights.dummy import fill_with_random
from worker_svc.weights.dummy_source import DummySource
from worker_svc.weights.load import load_weights
from worker_svc.weights.slots import as_slot
from worker_svc.weights.source import WeightSource

if TYPE_CHECKING:
    from worker_svc.models.transformers_backend import TransformersModel

log = get_logger("worker_svc.models.build")


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model that is ready for steps."""

    model: CausalModel
    shape: ModelShape
    max_model_len: int
    form: str
    """What decides its numbers beside the weights' bytes; part of the weights' digest."""


def build_model(
    source: WeightSource,
    config: ModelConfig,
    dtype: torch.dtype,
    progress: ProgressCallback,
    groups: ParallelGroups = ALONE,
    device: torch.device = CPU,
    weight_limit: Callable[[], int] | None = None,
) -> BuiltModel:
    """Builds the model of `source`, or this rank's part of it, and loads its weights.

    Args:
        source: The checkpoint.
        config: What of it is wanted.
        dtype: Type of the weights.
        progress: Called with ("load_weights", fraction).
        groups: Those of this rank.
        device: Where the weights go, each straight from its file.
        weight_limit: Bytes that they may take; None: what the container leaves.

    Raises:
        ValueError: The model or its config is not supported, or the checkpoint does not fit it.
        FailedPreconditionError: The weights do not fit into memory.
    """
    limit = weight_limit or free_memory_bytes
    implementation = read_implementation(source.config, config.model_impl)
    shape = read_shape(source.config, config.model_impl)
    max_model_len = shape.select_max_model_len(config.max_model_len)
    if device.type != "cpu" and config.quantization != "none":
        raise UnsupportedModelError(
            f"quantization {config.quantization} multiplies on CPUs alone: leave --quantization "
            "out, or use --device cpu"
        )
    if isinstance(shape, LlamaConfig):
        form = f"{str(dtype).removeprefix('torch.')}\0{shape.form(max_model_len)}"
        if isinstance(source, DummySource):
            form += "\0dummy"
        elif device.type != "cpu" and groups.layout.world_size == 1:
            # There memory is taken before it is written.
            _check_whole(source, dtype, limit(), device)
        with torch.device(device):
            model = model_class(implementation.architecture)(shape, max_model_len, dtype, groups)
        if config.quantization != "none":
            quantize_linears(model, config.quantization)
            form += f"\0{config.quantization}"
        _load_own(model, source, limit, progress, device)
        if not config.batch_invariant and mkl_is_slow():
            model.choose_products(ProductChoice())
        return BuiltModel(model, shape, max_model_len, form)
    if isinstance(source, DummySource):
        raise UnsupportedModelError(
            f"load_format dummy needs a module of our own, and architecture "
            f"{implementation.architecture} runs on the Transformers backend: use auto"
        )
    if config.quantization != "none":
        raise UnsupportedModelError(
            f"quantization {config.quantization} needs a module of our own, and architecture "
            f"{implementation.architecture} runs on the Transformers backend: leave "
            "--quantization out"
        )
    if groups.layout.world_size > 1:
        raise UnsupportedModelError(
            "tensor_parallel_size and pipeline_parallel_size must be 1 for architecture "
            f"{implementation.architecture}, which runs on the Transformers backend"
        )
    _check_whole(source, dtype, limit(), device)
    served = _load_with_transformers(source, implementation, max_model_len, dtype, progress, device)
    form = f"{str(dtype).removeprefix('torch.')}\0{served.form}"
    return BuiltModel(served, shape, max_model_len, form)


def _load_own(
    model: LlamaForCausalLM,
    source: WeightSource,
    weight_limit: Callable[[], int],
    progress: ProgressCallback,
    device: torch.device,
) -> None:
    slots = model.weight_slots()
    num_bytes = sum(as_slot(slot).target.nbytes for slot in slots.values())
    if device.type == "cpu":
        # Parameters that are not written yet take no memory.
        check_weights(num_bytes, weight_limit())
    else:
        # They have taken theirs.
        check_weights(num_bytes, weight_limit() + num_bytes, CUDA_ADVICE)
    if isinstance(source, DummySource):
        fill_with_random(slots, progress)
    else:
        load_weights(slots, source, progress, model.tensor_names())


def _check_whole(
    source: WeightSource, dtype: torch.dtype, limit_bytes: int, device: torch.device
) -> None:
    num_weights = sum(math.prod(source.shape(name)) for name in source.names())
    advice = CPU_ADVICE if device.type == "cpu" else CUDA_ADVICE
    check_weights(num_weights * dtype.itemsize, limit_bytes, advice)


def _load_with_transformers(
    source: WeightSource,
    implementation: Implementation,
    max_model_len: int,
    dtype: torch.dtype,
    progress: ProgressCallback,
    device: torch.device,
) -> TransformersModel:
    from worker_svc.models.transformers_backend import TransformersModel

    architecture = implementation.architecture
    if not implementation.is_tested:
        log.warning("architecture_untested", architecture=architecture)
    return TransformersModel.load(source, architecture, max_model_len, dtype, progress, device)
