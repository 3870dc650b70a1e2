"""Whether a model's steps are recorded in graphs, and the log line that says so.

Called once a load.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from pagewire.engine_config import EngineConfig
from pagewire.kit.logs import get_logger
from worker_svc.attention.base import AttentionBackend
from worker_svc.graphs.runner import GraphBackend
from worker_svc.models.base import CausalModel

log = get_logger("worker_svc.graphs")

GraphBackendFactory = Callable[[torch.device], GraphBackend]


def cuda_graph_backend(device: torch.device) -> GraphBackend:
    """How a CUDA device records."""
    from worker_svc.graphs.cuda import CudaGraphBackend

    return CudaGraphBackend(device)


def choose_graph_backend(
    config: EngineConfig,
    model: CausalModel,
    attention: AttentionBackend,
    device: torch.device,
    make_backend: GraphBackendFactory,
) -> Callable[[], GraphBackend] | None:
    """Makes what records this model; None: it is not recorded.

    On a CPU nothing is, and nothing is said.
    """
    if device.type != "cuda":
        return None
    problem = _problem(config, model, attention)
    log.info("cuda_graphs", recorded=problem is None, reason=problem or "the device is CUDA")
    return partial(make_backend, device) if problem is None else None


def _problem(config: EngineConfig, model: CausalModel, attention: AttentionBackend) -> str | None:
    if config.device.enforce_eager:
        return "--enforce-eager"
    if config.parallel.world_size > 1:
        return "several ranks talk to each other in the middle of a step"
    if not attention.can_capture:
        return "the attention backend reads lengths back from the device"
    if not model.can_capture:
        return "the Transformers backend runs code that may wait for the device"
    return None
