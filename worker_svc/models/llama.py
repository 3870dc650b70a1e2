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
from worker_svc.layers.parallel import VocabularyShard, make_row_linear
from worker_svc.layers.products import ProductChoice, functional_product
from worker_svc.layers.rotary import RotaryEmbedding, rotate
from worker_svc.models.config import LlamaConfig
from worker_svc.parallel.groups import ALONE, ParallelGroups
from worker_svc.parallel.shards import ModelShards, Span
from worker_svc.weights.slots import SlotTarget, TensorPart, WeightSlot

Rows = tuple[torch.Tensor, torch.Tensor]


class LlamaAttention(nn.Module):
    """Projections, optional norms of Q and K, rotation; the backend does the rest."""

    def __init__(
        self, config: LlamaConfig, layer: int, shards: ModelShards, groups: ParallelGroups
    ) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        query_size = shards.heads.size * config.head_dim
        kv_size = shards.kv_heads.size * config.head_dim
        self.qkv_proj = MergedLinear(
            config.hidden_size, (query_size, kv_size, kv_size), config.attention_qkv_bias
        )
        self.o_proj = make_row_linear(
            query_size, config.hidden_size, config.attention_output_bias, groups
        )
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

    def __init__(self, config: LlamaConfig, shards: ModelShards, groups: ParallelGroups) -> None:
        super().__init__()
        size = shards.intermediate.size
        self.gate_up_proj = MergedLinear(config.hidden_size, (size, size), config.mlp_bias)
        self.down_proj = make_row_linear(size, config.hidden_size, config.mlp_bias, groups)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(hidden).chunk(2, dim=-1)
        output: torch.Tensor = self.down_proj(functional.silu(gate) * up)
        return output


class LlamaLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self, config: LlamaConfig, layer: int, shards: ModelShards, groups: ParallelGroups
    ) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = LlamaAttention(config, layer, shards, groups)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config, shards, groups)

    def forward(self, hidden: torch.Tensor, rows: Rows, attention: StepAttention) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rows, attention)
        output: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return output


class LlamaForCausalLM(nn.Module):
    """Token ids to hidden states to logits; empty until a loader fills `weight_slots`.

    One of several ranks has its shard of the layers of its stage; the first stage has the
    embedding, the last one the last norm and the head.
    """

    can_capture = True

    def __init__(
        self,
        config: LlamaConfig,
        max_model_len: int,
        dtype: torch.dtype,
        groups: ParallelGroups = ALONE,
    ) -> None:
        """Allocates the parameters.

        Raises:
            UnsupportedModelError: The model cannot be split over so many ranks.
        """
        super().__init__()
        self.config = config
        self.groups = groups
        layout = groups.layout
        self.shards = ModelShards.of(config, layout)
        self.vocabulary = (
            VocabularyShard(self.shards.vocabulary, groups) if layout.tp_size > 1 else None
        )
        self.layer_indices = layout.layers(config.num_layers)
        is_tied, is_last = config.tie_word_embeddings, layout.is_last_stage
        has_embedding = layout.is_first_stage or (is_tied and is_last)
        self.embed_tokens = self._vocabulary_rows(dtype) if has_embedding else None
        self.layers = nn.ModuleList(
            LlamaLayer(config, place, self.shards, groups).to(dtype)
            for place in range(len(self.layer_indices))
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps).to(dtype) if is_last else None
        self.lm_head = self.embed_tokens if is_tied else None
        if is_last and not is_tied:
            self.lm_head = self._vocabulary_rows(dtype)
        self.head_product = functional_product
        self.rotary = RotaryEmbedding(
            config.rope, config.head_dim, config.max_position_embeddings, max_model_len, dtype
        )

    def choose_products(self, choice: ProductChoice) -> None:
        """Multiply as is chosen for each weight; once they are loaded."""
        for module in self.modules():
            if isinstance(module, MergedLinear):
                module.product = choice.of(module.weight)
        if self.lm_head is not None:
            self.head_product = choice.of(self.lm_head)

    @property
    def attention_spec(self) -> AttentionSpec:
        config = self.config
        return AttentionSpec(
            num_heads=self.shards.heads.size,
            num_kv_heads=self.shards.kv_heads.size,
            head_dim=config.head_dim,
            scale=config.head_dim**-0.5,
            sliding_windows=[config.sliding_windows[index] for index in self.layer_indices],
        )

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention
    ) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size] of a flat batch, before the last norm.

        A stage that is not the first gets them from the one before, one that is not the last hands
        them on.

        Args:
            token_ids: [num_tokens] int64.
            positions: [num_tokens] int64, each below max_model_len.
            attention: Attention of this step.
        """
        layout = self.groups.layout
        if layout.is_first_stage:
            hidden = self._embed(token_ids)
        else:
            hidden = self.groups.receive_hidden(
                len(token_ids), self.config.hidden_size, self.rotary.cos.dtype
            )
        rows = self.rotary.rows(positions)
        for layer in self.layers:
            hidden = layer(hidden, rows, attention)
        if not layout.is_last_stage:
            self.groups.send_hidden(hidden)
        return hidden

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32 of the rows that sample; on the last stage."""
        if self.norm is None or self.lm_head is None:
            raise RuntimeError("logits are computed on the last stage")
        logits = self.head_product(self.norm(hidden), self.lm_head, None)
        if self.vocabulary is not None:
            logits = self.vocabulary.gather_logits(logits)
        return logits.float()

    def weight_slots(self) -> dict[str, SlotTarget | WeightSlot]:
        """Checkpoint tensor name (Hugging Face's) to what this rank keeps of it."""
        slots: dict[str, SlotTarget | WeightSlot] = {}
        if self.embed_tokens is not None:
            slots["model.embed_tokens.weight"] = self._vocabulary_slot(self.embed_tokens)
        splits = _splits(self.config, self.shards)
        for index, layer in zip(self.layer_indices, self.layers, strict=True):
            for name, tensor in _layer_slots(layer):
                dim, span = splits.get(name, (0, None))
                slots[f"model.layers.{index}.{name}"] = _slot(tensor, dim, span)
        if self.norm is not None:
            slots["model.norm.weight"] = self.norm.weight.data
        if self.lm_head is not None and not self.config.tie_word_embeddings:
            slots["lm_head.weight"] = self._vocabulary_slot(self.lm_head)
        return slots

    def tensor_names(self) -> frozenset[str]:
        """Names of all tensors of the checkpoint, those of other stages included."""
        names = {"model.embed_tokens.weight", "model.norm.weight"}
        if not self.config.tie_word_embeddings:
            names.add("lm_head.weight")
        for name, _ in _layer_slots(self.layers[0]):
            names |= {f"model.layers.{index}.{name}" for index in range(self.config.num_layers)}
        return frozenset(names)

    def _vocabulary_rows(self, dtype: torch.dtype) -> nn.Parameter:
        num_rows = self.config.vocab_size if self.vocabulary is None else self.vocabulary.num_rows
        # Rows past the vocabulary stay zero.
        rows = torch.zeros(num_rows, self.config.hidden_size, dtype=dtype)
        return nn.Parameter(rows, requires_grad=False)

    def _vocabulary_slot(self, rows: nn.Parameter) -> SlotTarget | WeightSlot:
        span = self.shards.vocabulary
        return _slot(rows.data[: span.size], 0, span)

    def _embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        if self.embed_tokens is None:
            raise RuntimeError("tokens are embedded on the first stage")
        if self.vocabulary is not None:
            return self.vocabulary.embed(token_ids, self.embed_tokens)
        return functional.embedding(token_ids, self.embed_tokens)


def _slot(target: SlotTarget, dim: int, span: Span | None) -> SlotTarget | WeightSlot:
    if span is None or span.is_whole:
        return target
    return WeightSlot(target, TensorPart(dim, span.start, span.size), span.total)


def _splits(config: LlamaConfig, shards: ModelShards) -> dict[str, tuple[int, Span]]:
    """By tensor name within a layer: the dimension along which ranks share it, and this one's part.

    Others are whole on every rank.
    """
    query, key = shards.heads.times(config.head_dim), shards.kv_heads.times(config.head_dim)
    rows = {
        "self_attn.q_proj": query,
        "self_attn.k_proj": key,
        "self_attn.v_proj": key,
        "mlp.gate_proj": shards.intermediate,
        "mlp.up_proj": shards.intermediate,
    }
    splits = {
        f"{name}.{parameter}": (0, span)
        for name, span in rows.items()
        for parameter in ("weight", "bias")
    }
    splits["self_attn.o_proj.weight"] = (1, query)
    splits["mlp.down_proj.weight"] = (1, shards.intermediate)
    return splits


def _layer_slots(layer: nn.Module) -> Iterator[tuple[str, SlotTarget]]:
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
                yield f"{block}.{shard}.{parameter}", linear.shard(parameter, index)
