"""Whether a model runs with packed weights on the CPU kernels, and the building of one that does.

Owns the choice and its log line. Called by `loaded_model` once a load, before anything else is
built; imports of the kernels fail nowhere, since the library is looked for when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from pagewire.engine_config import EngineConfig
from pagewire.gguf import GgmlType
from pagewire.kit.logs import get_logger
from worker_svc.cpu.block_forms import FLOATS, KINDS
from worker_svc.cpu.kernels import ARITHMETIC, Kernels, Pool
from worker_svc.cpu.paged_attention import CpuAttentionBackend, attention_problem
from worker_svc.cpu.variant_check import best_kernels
from worker_svc.dtypes import multiplies_bfloat16
from worker_svc.memory import FLOATS_ADVICE, PACKED_ADVICE, check_weights
from worker_svc.models.build import BuiltModel
from worker_svc.models.config import LlamaConfig
from worker_svc.models.packed_llama import EMBEDDING, HEAD, PackedLlama, TypeOf
from worker_svc.models.shape import read_implementation, read_shape
from worker_svc.quantization.forms import GROUP_SIZE
from worker_svc.step import ProgressCallback
from worker_svc.weights.dummy_source import DummySource
from worker_svc.weights.load import load_weights
from worker_svc.weights.source import WeightSource

log = get_logger("worker_svc.models.packed")


@dataclass(frozen=True, slots=True)
class PackedChoice:
    """What a packed model is built from."""

    source: WeightSource
    shape: LlamaConfig
    kernels: Kernels


def choose_packed(
    config: EngineConfig, source: WeightSource, device: torch.device
) -> PackedChoice | None:
    """What to build if the model runs with packed weights; None: it runs in PyTorch.

    Raises:
        ValueError: `--attention-backend cpu` was asked for, and cannot be.
    """
    requested = config.attention.attention_backend
    if requested not in ("auto", "cpu") or device.type != "cpu":
        if requested == "cpu":
            raise ValueError("attention_backend cpu runs on CPUs alone: use auto")
        return None
    choice = _choose(config, source)
    if isinstance(choice, PackedChoice) and requested == "auto" and _is_for_pytorch(choice):
        choice = "this processor multiplies bfloat16 by itself"
    if isinstance(choice, PackedChoice):
        return choice
    if requested == "cpu":
        raise ValueError(f"attention_backend cpu is not possible here: {choice}: use auto")
    log.info("packed_weights", used=False, reason=choice)
    return None


def build_packed(
    choice: PackedChoice,
    config: EngineConfig,
    weight_limit: Callable[[], int],
    progress: ProgressCallback,
) -> tuple[BuiltModel, CpuAttentionBackend]:
    """The model with its weights, and its attention backend.

    Raises:
        ValueError: The checkpoint does not fit its config.
        FailedPreconditionError: The weights do not fit into memory.
    """
    shape, kernels = choice.shape, choice.kernels
    max_model_len = shape.select_max_model_len(config.model.max_model_len)
    pool = Pool(kernels, torch.get_num_threads())
    model = PackedLlama(shape, max_model_len, kernels, pool, _types(choice.source))
    slots = model.weight_slots()
    num_bytes = sum(slot.nbytes for slot in slots.values())
    advice = FLOATS_ADVICE if _is_of_floats(choice) else PACKED_ADVICE
    check_weights(num_bytes, weight_limit(), advice)
    load_weights(slots, choice.source, progress)
    log.info("packed_weights", used=True, variant=kernels.name, threads=pool.num_threads)
    # Variants give the same bits.
    form = f"packed\0{ARITHMETIC}\0{shape.form(max_model_len)}"
    built = BuiltModel(model, shape, max_model_len, form)
    return built, CpuAttentionBackend(kernels, pool, model.attention_spec)


def _types(source: WeightSource) -> TypeOf:
    """Types by name. A tensor that is missing has any: it is the loader's to name."""
    names = source.names()

    def type_of(name: str) -> GgmlType:
        found = source.ggml_type(name) if name in names else None
        return GgmlType.Q8_0 if found is None else found

    return type_of


def _choose(config: EngineConfig, source: WeightSource) -> PackedChoice | str:
    """What to build, or why not."""
    problem = _setting_problem(config)
    if problem is not None:
        return problem
    if isinstance(source, DummySource):
        return "the model has no weights"
    implementation = read_implementation(source.config, config.model.model_impl)
    shape = read_shape(source.config, config.model.model_impl)
    if not implementation.is_own or not isinstance(shape, LlamaConfig):
        return f"architecture {implementation.architecture} has no module of our own"
    problem = _shape_problem(shape, config.cache.block_size) or _type_problem(source, shape)
    if problem is not None:
        return problem
    kernels = best_kernels()
    if kernels is None:
        return "there are no kernels for this processor, or they are not built"
    return PackedChoice(source, shape, kernels)


def _setting_problem(config: EngineConfig) -> str | None:
    model = config.model
    if model.dtype != "auto":
        return f"--dtype {model.dtype}"
    if model.batch_invariant:
        return "--batch-invariant"
    if model.quantization != "none":
        return f"--quantization {model.quantization}"
    if config.parallel.world_size > 1:
        return "there are several ranks"
    return None


def _shape_problem(shape: LlamaConfig, block_size: int) -> str | None:
    sizes = (shape.hidden_size, shape.intermediate_size, shape.num_heads * shape.head_dim)
    for size in sizes:
        if size % GROUP_SIZE:
            return f"a linear layer has {size} inputs, no multiple of {GROUP_SIZE}"
    return attention_problem(shape.head_dim, block_size)


def _type_problem(source: WeightSource, shape: LlamaConfig) -> str | None:
    """Tensors that are missing are the loader's to name."""
    for name in _matrices(source, shape):
        found = source.ggml_type(name)
        if found not in KINDS:
            known = ", ".join(kind.name for kind in KINDS)
            kind = "of a type of its own" if found is None else found.name
            return f"{name} is {kind}, packed are {known}"
    return None


def _is_for_pytorch(choice: PackedChoice) -> bool:
    """Whether PyTorch's products of bfloat16 are there for all of it."""
    return multiplies_bfloat16() and _is_of_floats(choice)


def _is_of_floats(choice: PackedChoice) -> bool:
    source = choice.source
    return all(source.ggml_type(name) in FLOATS for name in _matrices(source, choice.shape))


def _matrices(source: WeightSource, shape: LlamaConfig) -> list[str]:
    """Names of what would be packed; nobody reads a head beside a tied embedding."""
    others = {EMBEDDING} if shape.tie_word_embeddings else {EMBEDDING, HEAD}
    return [
        name for name in sorted(source.names()) if name.endswith("_proj.weight") or name in others
    ]
