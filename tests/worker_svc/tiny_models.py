"""Random tiny models, written by transformers and read by both sides.

`initializer_range` 0.5 keeps the best two logits apart; norms and biases are made random too, since
fresh ones (1 and 0) would hide that they are not applied.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

LLAMA = {"architecture": "Llama"}
MQA: dict[str, Any] = {"num_key_value_heads": 1}
ROPE_THETA = 10_000.0

VARIANTS: dict[str, dict[str, Any]] = {
    "multi-head": {"num_key_value_heads": 4},
    "grouped-query": {},
    "multi-query": MQA,
    "tied": {"tie_word_embeddings": True},
    "head_dim apart": {"head_dim": 24},
    "attention biases": {"attention_bias": True},
    "mlp biases": {"mlp_bias": True},
    "rope linear": {"rope_parameters": {"rope_type": "linear", "factor": 2.0}},
    "rope llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "rope yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "rope yarn mscale": {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "mscale": 0.7,
            "mscale_all_dim": 0.3,
            "beta_fast": 16.0,
            "truncate": False,
        }
    },
    "rope dynamic": {
        "rope_parameters": {"rope_type": "dynamic", "factor": 4.0},
        "max_position_embeddings": 48,
    },
    "qwen2": {"architecture": "Qwen2"},
    "qwen2 sliding window": {
        "architecture": "Qwen2",
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "qwen3": {"architecture": "Qwen3", "head_dim": 16},
    "mistral sliding window": {"architecture": "Mistral", "sliding_window": 20},
}


def longrope(original: int) -> dict[str, Any]:
    return {
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [2.0 + 0.5 * i for i in range(8)],
            "original_max_position_embeddings": original,
        }
    }


def write_tiny_model(directory: Path, max_shard_size: str = "1GB", **overrides: Any) -> Any:
    """Writes config.json and safetensors to `directory`; returns the transformers model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        import transformers

        fields: dict[str, Any] = {
            "vocab_size": 160,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "initializer_range": 0.5,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        fields |= overrides
        architecture = fields.pop("architecture", "Llama")
        if "rope_parameters" in fields:
            fields["rope_parameters"] = {"rope_theta": ROPE_THETA} | fields["rope_parameters"]
        torch.manual_seed(0)
        config = getattr(transformers, f"{architecture}Config")(**fields)
        # The eager attention: the others pick kernels by shape.
        config._attn_implementation = "eager"
        model = getattr(transformers, f"{architecture}ForCausalLM")(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_(0.0, 0.5)
            elif "norm" in name:
                parameter.data.uniform_(0.5, 1.5)
        model.save_pretrained(directory, max_shard_size=max_shard_size)
    return model
