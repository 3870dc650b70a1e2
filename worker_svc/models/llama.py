"""The Llama family (Llama, Mistral, Qwen2, Qwen3, SmolLM) over a flat batch of tokens.

Owns the layers and which checkpoint tensor fills which part of them. Knows nothing of requests,
files or the KV cache: attention is handed in, one callable a step. The model runner calls it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from worker_svc.attention.base import AttentionSpec, StepAttention
from worker_svc.layers.linear import MergedLinear
from worker_svc.layers.norm import RMSNorm
from worker_svc.layers.rotary import RotaryEmbedding, rotate
from worker_svc.models.config import LlamaConfig

Rows = tuple[torch.Tensor, torch.Tensor]


class LlamaAttention(nn.Module):
    """Projections, optional norms of Q and K, rotation; the backend does the rest."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.num_heads, self.num_kv_heads = config.num_heads, config.num_kv_heads
        self.head_dim = config.head_dim
        query_size = config.num_heads * config.head_dim
        kv_size = config.num_kv_heads * config.head_dim
        self.qkv_proj = MergedLinear(
            config.hidden_size, (query_size, kv_size, kv_size), config.attention_qkv_bias
        )
        self.o_proj = MergedLinear(query_size, (config.hidden_size,), config.attention_output_bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, hidden: torch.Tensor, rows: Rows, attention: StepAttention) -> torch.Tensor:
        query, key, value = (
            part.unflatten(1, (-1, self.head_dim))
            for part in self.qkv_proj(hidden).split(self.qkv_proj.output_sizes, dim=1)
        )  # each [num_tokens, heads, head_dim]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = rotate(query, *rows), rotate(key, *rows)
        output: torch.Tensor = self.o_proj(attention(self.layer, query, key, value))
        return output


class LlamaMLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        size = config.intermediate_size
        self.gate_up_proj = MergedLinear(config.hidden_size, (size, size), config.mlp_bias)
        self.down_proj = MergedLinear(size, (config.hidden_size,), config.mlp_bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden).chunk(2, dim=-1)
        output: torch.Tensor = self.down_proj(functional.silu(gate) * up)
        return output


class LlamaLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(self, hidden: torch.Tensor, rows: Rows, attention: StepAttention) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rows, attention)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class LlamaForCausalLM(nn.Module):
    """Token ids to hidden states to logits; empty until a loader fills `weight_slots`."""

    def __init__(self, config: LlamaConfig, max_model_len: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Parameter(
            torch.empty(config.vocab_size, config.hidden_size, dtype=dtype), requires_grad=False
        )
        self.layers = nn.ModuleList(
            LlamaLayer(config, index).to(dtype) for index in range(config.num_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps).to(dtype)
        self.lm_head = (
            self.embed_tokens
            if config.tie_word_embeddings
            else nn.Parameter(torch.empty_like(self.embed_tokens), requires_grad=False)
        )
        self.rotary = RotaryEmbedding(
            config.rope, config.head_dim, config.max_position_embeddings, max_model_len, dtype
        )

    @property
    def attention_spec(self) -> AttentionSpec:
        config = self.config
        return AttentionSpec(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            sliding_windows=config.sliding_windows,
        )

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention
    ) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size] of a flat batch, before the last norm.

        Args:
            token_ids: [num_tokens] int64.
            positions: [num_tokens] int64, each below max_model_len.
            attention: Attention of this step.
        """
        hidden = functional.embedding(token_ids, self.embed_tokens)
        rows = self.rotary.rows(positions)
        for layer in self.layers:
            hidden = layer(hidden, rows, attention)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of the rows that sample."""
        return functional.linear(self.norm(hidden), self.lm_head).float()

    def weight_slots(self) -> dict[str, torch.Tensor]:
        """Checkpoint tensor name (Hugging Face's) to the part of a parameter that it fills."""
        slots = {"model.embed_tokens.weight": self.embed_tokens.data}
        for index, layer in enumerate(self.layers):
            prefix = f"model.layers.{index}"
            slots.update((f"{prefix}.{name}", slot) for name, slot in _layer_slots(layer))
        slots["model.norm.weight"] = self.norm.weight.data
        if not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self.lm_head.data
        return slots


def _layer_slots(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(layer, LlamaLayer):
        raise TypeError(f"not a LlamaLayer: {type(layer).__name__}")
    attention, mlp = layer.self_attn, layer.mlp
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", getattr(layer, name).weight.data
    for name, norm in (("q_norm", attention.q_norm), ("k_norm", attention.k_norm)):
        if norm is not None:
            yield f"self_attn.{name}.weight", norm.weight.data
    merged = (
        ("self_attn", attention.qkv_proj, ("q_proj", "k_proj", "v_proj")),
        ("self_attn", attention.o_proj, ("o_proj",)),
        ("mlp", mlp.gate_up_proj, ("gate_proj", "up_proj")),
        ("mlp", mlp.down_proj, ("down_proj",)),
    )
    for block, linear, shards in merged:
        parameters = ("weight",) if linear.bias is None else ("weight", "bias")
        for parameter in parameters:
            for index, shard in enumerate(shards):
                yield f"{block}.{shard}.{parameter}", linear.shard(parameter, index).data
