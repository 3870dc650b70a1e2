"""Model directories for the simulated worker, with a kind of attention for each layer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tests.worker_svc.harness import VOCAB_SIZE, write_model

FULL, SLIDING = "full_attention", "sliding_attention"

LAYOUTS = {
    "full": [FULL] * 3,
    "full and sliding": [FULL, SLIDING] * 2,
    "sliding alone": [SLIDING] * 3,
    "three groups": [SLIDING, SLIDING, FULL] * 2,
}


def write_grouped_model(directory: Path, layer_types: Sequence[str], window: int) -> Path:
    """A Qwen3 of these layers, with a tokenizer of one word a token."""
    path = write_model(directory) / "config.json"
    fields = json.loads(path.read_text()) | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": len(layer_types),
        "layer_types": list(layer_types),
        "use_sliding_window": True,
        "sliding_window": window,
    }
    path.write_text(json.dumps(fields))
    vocabulary = {f"t{i}": i for i in range(VOCAB_SIZE)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return directory


def windows_of(layer_types: Sequence[str], window: int) -> list[int]:
    """Windows of the groups that a layout of `LAYOUTS` has, by hand."""
    windows = {
        (FULL,) * 3: [0],
        (FULL, SLIDING) * 2: [0, window],
        (SLIDING,) * 3: [window],
        (SLIDING, SLIDING, FULL) * 2: [window, window, 0],
    }
    return windows[tuple(layer_types)]
