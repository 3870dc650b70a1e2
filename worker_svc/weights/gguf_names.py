"""GGUF's names of tensors and Hugging Face's, and what conversion to GGUF does to the tensors.

Knows architectures by GGUF's name. Pure: no files, no tensors. Called by `gguf_source`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from worker_svc.weights.source import WeightsError

TOP_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA = frozenset({"gemma2", "gemma3"})
"""Their norms are stored plus 1, and the layers have two more of them."""
_GEMMA_NORMS: Mapping[str, str] = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")


def layer_names(architecture: str) -> Mapping[str, str]:
    """Names within a layer, GGUF's to Hugging Face's."""
    return {**LAYER_NAMES, **_GEMMA_NORMS} if architecture in GEMMA else LAYER_NAMES


def hf_name(name: str, architecture: str = "llama") -> str:
    """Hugging Face's name of a GGUF tensor.

    Raises:
        WeightsError: The tensor is none that a model of this architecture has.
    """
    names = layer_names(architecture)
    match = _LAYER.fullmatch(name)
    if match and match[2] in names:
        return f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}"
    stem, _, parameter = name.rpartition(".")
    if stem in TOP_NAMES and parameter == "weight":
        return f"{TOP_NAMES[stem]}.{parameter}"
    raise WeightsError(f"GGUF tensor {name} is not known to any implemented model")


def is_stored_plus_1(name: str, architecture: str) -> bool:
    """Whether conversion added 1 to a tensor of this Hugging Face name."""
    return architecture in GEMMA and name.endswith("norm.weight")
