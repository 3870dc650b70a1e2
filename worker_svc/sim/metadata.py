"""What the simulated worker knows of its model: the shape, from the model's own files, no weights.

Reads the same fields with the same parsers as the real loader, so both report the same model.
"""

from __future__ import annotations

import hashlib

from pagewire.engine_config import EngineConfig
from pagewire.model_source import resolve_model
from worker_svc.kv_cache_groups import kv_cache_groups
from worker_svc.models.config_fields import read_config_fields
from worker_svc.models.shape import read_shape
from worker_svc.sim.sampling import SAMPLER_VERSION
from worker_svc.step import ModelInfo


def read_model_info(config: EngineConfig) -> ModelInfo:
    """Shape and special tokens of the configured model.

    Raises:
        ValueError: The model is not there, not supported, or shorter than --max-model-len.
    """
    source = resolve_model(config.model.model, config.load.revision)
    model = read_shape(read_config_fields(source), config.model.model_impl)
    digest = hashlib.sha256(f"{SAMPLER_VERSION}\0{model!r}".encode()).hexdigest()
    return ModelInfo(
        architecture=model.architecture,
        vocab_size=model.vocab_size,
        max_model_len=model.select_max_model_len(config.model.max_model_len),
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        hidden_size=model.hidden_size,
        dtype="float32" if config.model.dtype == "float32" else "bfloat16",
        attention_backend="sim",
        eos_token_ids=model.eos_token_ids,
        bos_token_id=model.bos_token_id,
        weights_digest=digest,
        kv_cache_groups=kv_cache_groups(model.sliding_windows),
    )
