"""From a checkpoint to a model with its weights: our own module or the Transformers backend.

Owns the choice and the order of the steps; the model runner calls it once a load. The backend and
transformers itself are imported only where they are chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pagewire.engine_config import ModelConfig
from pagewire.kit.logs import get_logger
from worker_svc.cpu_memory import free_memory_bytes
from worker_svc.layers.linear import quantize_linears
from worker_svc.memory import check_weights
from worker_svc.models.base import CausalModel
from worker_svc.models.config import LlamaConfig, UnsupportedModelError
from worker_svc.models.registry import Implementation, model_class
from worker_svc.models.shape import ModelShape, read_implementation, read_shape
from worker_svc.parallel.groups import ALONE, ParallelGroups
from worker_svc.step import ProgressCallback
from worker_svc.weights.load import load_weights
from worker_svc.weights.slots import as_slot
from worker_svc.weights.source import WeightSource

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
) -> BuiltModel:
    """Builds the model of `source`, or this rank's part of it, and loads its weights.

    Raises:
        ValueError: The model or its config is not supported, or the checkpoint does not fit it.
    """
    implementation = read_implementation(source.config, config.model_impl)
    shape = read_shape(source.config, config.model_impl)
    max_model_len = shape.select_max_model_len(config.max_model_len)
    form = f"{str(dtype).removeprefix('torch.')}\0{shape!r}"
    if isinstance(shape, LlamaConfig):
        model = model_class(implementation.architecture)(shape, max_model_len, dtype, groups)
        if config.quantization != "none":
            quantize_linears(model, config.quantization)
            form += f"\0{config.quantization}"
        slots = model.weight_slots()
        # Parameters that are not written yet take no memory.
        num_bytes = sum(as_slot(slot).target.nbytes for slot in slots.values())
        check_weights(num_bytes, free_memory_bytes())
        load_weights(slots, source, progress, model.tensor_names())
        return BuiltModel(model, shape, max_model_len, form)
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
    return _build_with_transformers(source, implementation, shape, max_model_len, dtype, progress)


def _build_with_transformers(
    source: WeightSource,
    implementation: Implementation,
    shape: ModelShape,
    max_model_len: int,
    dtype: torch.dtype,
    progress: ProgressCallback,
) -> BuiltModel:
    from worker_svc.models.transformers_backend import TransformersModel, config_form

    architecture = implementation.architecture
    if not implementation.is_tested:
        log.warning("architecture_untested", architecture=architecture)
    num_weights = sum(math.prod(source.shape(name)) for name in source.names())
    check_weights(num_weights * dtype.itemsize, free_memory_bytes())
    model = TransformersModel.load(source, architecture, max_model_len, dtype, progress)
    form = f"{str(dtype).removeprefix('torch.')}\0{config_form(source.config)}"
    return BuiltModel(model, shape, max_model_len, form)
