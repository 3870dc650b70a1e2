"""The config fields of a model on disk, whatever its files, without its weights; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagewire.gguf import read_gguf
from pagewire.model_source import ModelFormat, ModelSource
from worker_svc.models.gguf_config import hf_config_from_gguf
from worker_svc.models.hf_files import read_model_config


def read_config_fields(source: ModelSource) -> Mapping[str, Any]:
    """Fields of a Hugging Face config.json.

    Raises:
        ValueError: The files are damaged, or of a kind that is not implemented.
    """
    if source.format is ModelFormat.GGUF:
        return hf_config_from_gguf(read_gguf(source.path))
    return read_model_config(source.path)
