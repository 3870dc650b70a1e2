"""What the simulated worker knows of its model: the shape, from the model's own files, no weights.

Reads the same fields with the same parsers as the real loader, so both report the same model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pagewire.engine_config import EngineConfig
from pagewire.gguf import read_gguf
from pagewire.model_source import ModelFormat, ModelSource, resolve_model
from worker_svc.kv_cache_groups import kv_cache_groups
from worker_svc.models.gguf_config import hf_config_from_gguf
from worker_svc.models.hf_files import read_model_config
from worker_svc.models.shape import read_shape
from worker_svc.sim.sampling import SAMPLER_VERSION
from worker_svc.step import ModelInfo


def read_model_info(config: EngineConfig) -> ModelInfo:
    """Shape and special tokens of the configured model.

    Raises:
        ValueError: The model is not there, not supported, or shorter than --max-model-len.
    """
    source = resolve_model(config.model.model, config.load.revision)
    model = read_shape(_config_fields(source), config.model.model_impl)
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


def _config_fields(source: ModelSource) -> Mapping[str, Any]:
    if source.format is ModelFormat.GGUF:
        return hf_config_from_gguf(read_gguf(source.path))
    return read_model_config(source.path)
