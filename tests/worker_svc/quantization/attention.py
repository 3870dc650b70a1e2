"""Plain causal attention over one whole prompt, so that a model's logits need no KV cache."""

from __future__ import annotations

import torch
from torch.nn import functional

from worker_svc.models.base import CausalModel


def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """[num_tokens, heads, head_dim] each to [num_tokens, num_heads * head_dim]."""
    group_size = query.shape[1] // key.shape[1]
    heads = [t.transpose(0, 1) for t in (query, key, value)]
    keys, values = (t.repeat_interleave(group_size, dim=0) for t in heads[1:])
    output = functional.scaled_dot_product_attention(heads[0], keys, values, is_causal=True)
    return output.transpose(0, 1).flatten(1)


@torch.inference_mode()
def logits_of(model: CausalModel, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size] float32."""
    positions = torch.arange(len(token_ids))
    return model.compute_logits(model(torch.tensor(token_ids), positions, attend))
