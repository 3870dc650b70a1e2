"""The Llama family on a CPU with weights as their file has them: one call to the kernels a step.

Owns the packed weights and which checkpoint tensor fills which. Computes what `llama` does, with
activations rounded to 16 bits before each product of codes; `llama` is its reference. One rank, and
the attention of `worker_svc.cpu.paged_attention`. Made by `packed_build`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from pagewire.gguf import GgmlType
from worker_svc.attention.base import AttentionSpec, StepAttention
from worker_svc.cpu.kernels import Kernels, Pool, release_with
from worker_svc.cpu.packing import PackedMatrix
from worker_svc.cpu.paged_attention import CpuStepAttention
from worker_svc.cpu.structs import Layer, Linear, Matrix, Model
from worker_svc.layers.rotary import RotaryEmbedding
from worker_svc.models.config import LlamaConfig
from worker_svc.sampler.metadata import Float32s, Ints
from worker_svc.weights.slots import SlotTarget

TypeOf = Callable[[str], GgmlType]
"""Type of a checkpoint tensor's blocks, by Hugging Face's name."""
ALONE_PRODUCTS = 8 * 2**20
"""Multiplications of a forward pass, or of a product with the head, that one thread does alone:
waking others gains less than it takes from the services that have work for the other cores."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class PackedLinear(nn.Module):
    """Several outputs of one input side by side, each with blocks of a type of its own."""

    def __init__(self, matrices: Sequence[PackedMatrix], names: Sequence[str], bias: bool) -> None:
        super().__init__()
        self.names = tuple(names)
        self.matrices = nn.ModuleList(matrices)
        total = sum(matrix.rows for matrix in matrices)
        self.bias = _floats(total) if bias else None
        self._structs = (Matrix * len(matrices))(*(matrix.struct for matrix in matrices))

    @classmethod
    def make(
        cls,
        kernels: Kernels,
        type_of: TypeOf,
        rows: Mapping[str, int],
        columns: int,
        bias: bool,
    ) -> PackedLinear:
        """Empty, for `rows` of each tensor, named without `.weight`."""
        matrices = [
            PackedMatrix(kernels, type_of(f"{name}.weight"), size, columns)
            for name, size in rows.items()
        ]
        return cls(matrices, list(rows), bias)

    @property
    def struct(self) -> Linear:
        """For the library; good while this lives."""
        bias = None if self.bias is None else self.bias.data_ptr()
        return Linear(self._structs, len(self._structs), bias)

    def slots(self) -> Iterator[tuple[str, SlotTarget]]:
        start = 0
        for name, matrix in zip(self.names, self.matrices, strict=True):
            if not isinstance(matrix, PackedMatrix):
                raise TypeError("not a packed matrix")
            yield f"{name}.weight", matrix
            if self.bias is not None:
                yield f"{name}.bias", self.bias.data.narrow(0, start, matrix.rows)
            start += matrix.rows


class PackedLayer(nn.Module):
    """Weights of one layer."""

    def __init__(self, config: LlamaConfig, index: int, kernels: Kernels, type_of: TypeOf) -> None:
        super().__init__()
        prefix = f"model.layers.{index}"
        self.prefix = prefix
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

        make = partial(PackedLinear.make, kernels, type_of)
        self.qkv = make(
            {
                f"{prefix}.self_attn.q_proj": query,
                f"{prefix}.self_attn.k_proj": key,
                f"{prefix}.self_attn.v_proj": key,
            },
            hidden,
            config.attention_qkv_bias,
        )
        self.output = make(
            {f"{prefix}.self_attn.o_proj": hidden}, query, config.attention_output_bias
        )
        self.gate_up = make(
            {f"{prefix}.mlp.gate_proj": inner, f"{prefix}.mlp.up_proj": inner},
            hidden,
            config.mlp_bias,
        )
        self.down = make({f"{prefix}.mlp.down_proj": hidden}, inner, config.mlp_bias)
        self.input_norm, self.output_norm = _floats(hidden), _floats(hidden)
        self.query_norm = _floats(config.head_dim) if config.qk_norm else None
        self.key_norm = _floats(config.head_dim) if config.qk_norm else None

    def struct(self, window: int | None) -> Layer:
        """For the library; good while this lives."""
        return Layer(
            input_norm=self.input_norm.data_ptr(),
            query_norm=None if self.query_norm is None else self.query_norm.data_ptr(),
            key_norm=None if self.key_norm is None else self.key_norm.data_ptr(),
            output_norm=self.output_norm.data_ptr(),
            qkv=self.qkv.struct,
            output=self.output.struct,
            gate_up=self.gate_up.struct,
            down=self.down.struct,
            window=window or 0,
        )

    def slots(self) -> Iterator[tuple[str, SlotTarget]]:
        yield f"{self.prefix}.input_layernorm.weight", self.input_norm.data
        yield f"{self.prefix}.post_attention_layernorm.weight", self.output_norm.data
        if self.query_norm is not None and self.key_norm is not None:
            yield f"{self.prefix}.self_attn.q_norm.weight", self.query_norm.data
            yield f"{self.prefix}.self_attn.k_norm.weight", self.key_norm.data
        for linear in (self.qkv, self.output, self.gate_up, self.down):
            yield from linear.slots()


class PackedLlama(nn.Module):
    """Token ids to hidden states to logits; empty until a loader fills `weight_slots`."""

    can_capture = False

    def __init__(
        self,
        config: LlamaConfig,
        max_model_len: int,
        kernels: Kernels,
        pool: Pool,
        type_of: TypeOf,
    ) -> None:
        super().__init__()
        self.config = config
        self._kernels, self._pool = kernels, pool
        vocabulary, hidden = config.vocab_size, config.hidden_size
        self.embedding = PackedMatrix(kernels, type_of(EMBEDDING), vocabulary, hidden)
        self.head = self.embedding
        if not config.tie_word_embeddings:
            self.head = PackedMatrix(kernels, type_of(HEAD), vocabulary, hidden)
        self.layers = nn.ModuleList(
            PackedLayer(config, index, kernels, type_of) for index in range(config.num_layers)
        )
        self.norm = _floats(hidden)
        self.rotary = RotaryEmbedding(
            config.rope,
            config.head_dim,
            config.max_position_embeddings,
            max_model_len,
            torch.float32,
        )
        # Results lie in memory that is kept: fresh memory costs more than what is computed in it.
        self._hidden = torch.empty(0)
        self._logits = torch.empty(0)
        self._plan = self._make_plan()

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
        """Hidden states [num_tokens, hidden_size] float32, before the last norm.

        They are overwritten by the next step.

        Raises:
            IndexError: A token id is not in the vocabulary, or a position past max_model_len.
        """
        if not isinstance(attention, CpuStepAttention):
            raise TypeError("a packed model has the attention backend cpu")
        self._check_inputs(token_ids.numpy(), positions.numpy())
        num_tokens = attention.num_tokens
        self._hidden = _grown(self._hidden, num_tokens, self.config.hidden_size)
        step = attention.struct(token_ids, positions)
        self._kernels.native.pw_plan_forward(
            self._plan,
            ctypes.byref(attention.cache),
            ctypes.byref(step),
            self._hidden.data_ptr(),
        )
        return self._hidden[:num_tokens]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [num_rows, vocab_size] float32, overwritten by the next call."""
        num_rows, hidden = len(hidden), hidden.contiguous()
        self._logits = _grown(self._logits, num_rows, self.config.vocab_size)
        self._kernels.native.pw_plan_logits(
            self._plan, hidden.data_ptr(), num_rows, self._logits.data_ptr()
        )
        return self._logits[:num_rows]

    def choose_greedily(self, hidden: torch.Tensor) -> tuple[Ints, Float32s]:
        """The lowest token id of the largest logit of each row, and that logit, without the logits.

        Returns:
            [num_rows] each; the logit is NaN, and the id means nothing, where any of the row is.
        """
        num_rows, hidden = len(hidden), hidden.contiguous()
        token_ids = np.empty(num_rows, dtype=np.int64)
        largest = np.empty(num_rows, dtype=np.float32)
        self._kernels.native.pw_plan_greedy(
            self._plan,
            hidden.data_ptr(),
            num_rows,
            token_ids.ctypes.data,
            largest.ctypes.data,
        )
        return token_ids, largest

    def weight_slots(self) -> dict[str, SlotTarget]:
        """Checkpoint tensor name (Hugging Face's) to what it fills."""
        slots: dict[str, SlotTarget] = {EMBEDDING: self.embedding}
        for layer in self._packed_layers():
            slots.update(layer.slots())
        slots["model.norm.weight"] = self.norm.data
        if not self.config.tie_word_embeddings:
            slots[HEAD] = self.head
        return slots

    def _check_inputs(self, token_ids: Ints, positions: Ints) -> None:
        lowest, highest = token_ids.min(), token_ids.max()
        if lowest < 0 or highest >= self.config.vocab_size:
            raise IndexError(f"token ids {lowest} to {highest} are not all in the vocabulary")
        if len(positions) != len(token_ids) or positions.max() >= len(self.rotary.cos):
            raise IndexError("a position is past max_model_len")

    def _packed_layers(self) -> Iterator[PackedLayer]:
        for layer in self.layers:
            if not isinstance(layer, PackedLayer):
                raise TypeError("not a packed layer")
            yield layer

    def _make_plan(self) -> int:
        config = self.config
        windows = zip(self._packed_layers(), config.sliding_windows, strict=True)
        layers = (Layer * config.num_layers)(*(layer.struct(window) for layer, window in windows))
        model = Model(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            eps=config.rms_norm_eps,
            scale=config.head_dim**-0.5,
            layers=layers,
            final_norm=self.norm.data_ptr(),
            embedding=self.embedding.struct,
            head=self.head.struct,
            cosines=self.rotary.cos.data_ptr(),
            sines=self.rotary.sin.data_ptr(),
            alone_products=ALONE_PRODUCTS,
        )
        library = self._kernels.native
        plan: int = library.pw_plan_create(
            self._kernels.handle, self._pool.handle, ctypes.byref(model)
        )
        release_with(self, library.pw_plan_destroy, plan)
        return plan


def _floats(size: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(size, dtype=torch.float32), requires_grad=False)


def _grown(buffer: torch.Tensor, num_rows: int, size: int) -> torch.Tensor:
    """The buffer, or a larger one in its place: at least [num_rows, size], not initialized."""
    if buffer.numel() >= num_rows * size:
        return buffer
    return torch.empty((num_rows, size), dtype=torch.float32)
