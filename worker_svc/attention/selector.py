"""Which attention backend a model gets, from `--attention-backend`, its shape and its device.

Owns the choice and its one log line. Imports xformers only when it is chosen. Called by the model
runner when it loads a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pagewire.engine_config import EngineConfig
from pagewire.kit.logs import get_logger
from worker_svc.attention.base import AttentionBackend, AttentionSpec
from worker_svc.attention.support import MIN_CAPABILITY, Platform, xformers_problem
from worker_svc.attention.torch_backend import TorchAttentionBackend

log = get_logger("worker_svc.attention")


@dataclass(frozen=True, slots=True)
class AttentionChoice:
    """The backend's name, as flags have it, and why it is that one."""

    name: str
    reason: str


def choose_attention_backend(
    config: EngineConfig,
    spec: AttentionSpec,
    dtype: torch.dtype,
    device: torch.device,
    capability: tuple[int, int] | None = None,
) -> AttentionChoice:
    """The backend for a model; imports nothing.

    Args:
        config: The engine's.
        spec: The model's attention.
        dtype: Of its weights.
        device: Where it runs.
        capability: Compute capability of a CUDA device; None: high enough.

    Raises:
        ValueError: The backend that was asked for cannot run; the message says what to change.
    """
    requested = config.attention.attention_backend
    platform: Platform = "cuda" if device.type == "cuda" else "cpu"
    if requested == "torch":
        return AttentionChoice("torch", "--attention-backend")
    if requested == "auto" and platform == "cpu":
        return AttentionChoice("torch", "the device is a CPU")
    if config.model.batch_invariant and platform == "cpu":
        # The interpreter's matrix products treat the rows of a block unlike.
        raise ValueError(
            "attention_backend xformers is not batch-invariant on a CPU: use torch, or leave "
            "--batch-invariant out"
        )
    dtype_name = str(dtype).removeprefix("torch.")
    if requested == "auto" and dtype == torch.float32:
        return AttentionChoice("torch", "xformers takes no float32 on CUDA")
    if capability is not None and capability < MIN_CAPABILITY:
        (major, minor), needed = capability, ".".join(map(str, MIN_CAPABILITY))
        reason = f"xformers needs compute capability {needed}, the device has {major}.{minor}"
        if requested == "auto":
            return AttentionChoice("torch", reason)
        raise ValueError(f"attention_backend {reason}: use --attention-backend torch")
    problem = xformers_problem(
        platform, dtype_name, config.cache.block_size, spec.head_dim, spec.softcap
    )
    if problem is None:
        reason = "the device is CUDA" if requested == "auto" else "--attention-backend"
        return AttentionChoice("xformers", reason)
    if spec.softcap is not None and (platform == "cpu" or requested == "auto"):
        # A property of the model, which no flag of the user's can change.
        return AttentionChoice("torch", f"xformers {problem}")
    raise ValueError(f"attention_backend xformers {problem}")


def make_attention_backend(
    config: EngineConfig, spec: AttentionSpec, dtype: torch.dtype, device: torch.device
) -> tuple[str, AttentionBackend]:
    """The chosen backend and its name.

    Raises:
        ValueError: It cannot run here; the message says what to change.
    """
    on_cuda = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if on_cuda else None
    choice = choose_attention_backend(config, spec, dtype, device, capability)
    log.info("attention_backend", backend=choice.name, reason=choice.reason)
    if choice.name == "torch":
        invariant = config.model.batch_invariant
        backend = TorchAttentionBackend(spec, dtype, device, batch_invariant=invariant)
        return choice.name, backend
    from worker_svc.attention.xformers_backend import XformersAttentionBackend, XformersSettings
    from worker_svc.attention.xformers_operators import XformersOperators

    settings = XformersSettings.for_device(device)
    operators = XformersOperators(interpret=device.type == "cpu")
    return choice.name, XformersAttentionBackend(spec, dtype, operators, settings)
