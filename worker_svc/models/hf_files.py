"""The JSON files of a Hugging Face directory that say what a model is.

Read the same way by the real loader and by the simulated worker, without torch. It knows no
weights, and nothing of what the fields mean beyond the tokens that end a sequence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_svc.models.config import UnsupportedModelError, token_ids_field


def read_json_object(path: Path) -> dict[str, Any]:
    """Read one file.

    Raises:
        UnsupportedModelError: It is not there, or not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnsupportedModelError(f"{path} cannot be read as JSON") from error
    if not isinstance(value, dict):
        raise UnsupportedModelError(f"{path} is not a JSON object")
    return value


def read_generation_config(directory: Path) -> dict[str, Any]:
    """Fields of generation_config.json; empty where there is none."""
    path = directory / "generation_config.json"
    return read_json_object(path) if path.is_file() else {}


def read_model_config(directory: Path) -> Mapping[str, Any]:
    """Fields of config.json, with all tokens that end a sequence.

    Chat models end a turn with tokens that only generation_config.json names (Llama 3's
    `<|eot_id|>`), so the two lists are joined, config.json's first.
    """
    config = read_json_object(directory / "config.json")
    more = token_ids_field(read_generation_config(directory).get("eos_token_id"))
    eos = dict.fromkeys((*token_ids_field(config.get("eos_token_id")), *more))
    return {**config, "eos_token_id": list(eos)}
