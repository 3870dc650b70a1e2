"""The shape of a Llama-like model, read from the fields of a Hugging Face config.json.

Owns which fields are understood and what each unset one means. Knows nothing of weights, of GGUF
(whose metadata `gguf_config` turns into the same fields) or of the engine's settings. What would
change the numbers and is not implemented is refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker_svc.models.rope_config import RopeConfig

MAX_LAYERS = 4096


class UnsupportedModelError(ValueError):
    """The model needs something that is not implemented; the message names it."""


def check_max_model_len(wanted: int | None, limit: int) -> int:
    """The longest sequence in tokens: `wanted`, or the model's `limit` where nothing is.

    Raises:
        ValueError: More is wanted than the model can.
    """
    if wanted is not None and wanted > limit:
        raise ValueError(
            f"max_model_len {wanted} is more than the model's own limit of {limit} positions: "
            "lower --max-model-len"
        )
    return wanted or limit


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Switches of the Llama family: Llama, Mistral, Qwen2, Qwen3, SmolLM."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    """Apart from hidden_size / num_heads where the config says so."""
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_qkv_bias: bool
    attention_output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    """RMSNorm over each head of Q and K before the rotation (Qwen3)."""
    sliding_windows: tuple[int | None, ...]
    """One for each layer: how many keys a query sees, itself included; None: all."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def select_max_model_len(self, wanted: int | None) -> int:
        """The longest sequence: what is wanted, or all that the model can.

        Raises:
            ValueError: The model cannot do that much.
        """
        return check_max_model_len(wanted, self.rope.max_model_len(self.max_position_embeddings))

    def form(self, max_model_len: int) -> str:
        """All that decides the numbers of a model beside its weights and their type."""
        return (
            f"{self!r}\0long factors" if self.rope.has_long_factors(max_model_len) else repr(self)
        )

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim")
        for name in sizes:
            if getattr(self, name) < 1:
                raise UnsupportedModelError(f"model config: {name} must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"model config: num_attention_heads ({self.num_heads}) is not a multiple of "
                f"num_key_value_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise UnsupportedModelError(f"model config: head_dim {self.head_dim} is odd")


def llama_config_from_hf(config: Mapping[str, Any], architecture: str) -> LlamaConfig:
    """Reads the fields of a config.json.

    Raises:
        UnsupportedModelError: A field is missing, or has a value that is not implemented.
        ValueError: The same of the rotary embedding.
    """
    try:
        return _llama_config(config, architecture)
    except (TypeError, KeyError, AttributeError, ArithmeticError) as error:
        # A damaged file: a list for a number, an infinite one, a division by it.
        raise UnsupportedModelError("model config: a field has a value of no use") from error


def _llama_config(config: Mapping[str, Any], architecture: str) -> LlamaConfig:
    _refuse_unsupported(config)
    model_type = str(config.get("model_type", ""))
    num_heads = _require_int(config, "num_attention_heads")
    hidden_size = _require_int(config, "hidden_size")
    head_dim = config.get("head_dim") or hidden_size // num_heads
    attention_bias = bool(config.get("attention_bias", model_type == "qwen2"))
    return LlamaConfig(
        architecture=architecture,
        vocab_size=_require_int(config, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_require_int(config, "intermediate_size"),
        num_layers=_require_int(config, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(head_dim),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        max_position_embeddings=_require_int(config, "max_position_embeddings"),
        rope=RopeConfig.from_hf(config),
        # transformers leaves fields out of config.json that equal the class default.
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        attention_qkv_bias=attention_bias,
        # Qwen2 has biases on Q, K and V only.
        attention_output_bias=attention_bias and model_type != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=model_type == "qwen3",
        sliding_windows=_sliding_windows(config, model_type),
        eos_token_ids=token_ids_field(config.get("eos_token_id")),
        bos_token_id=next(iter(token_ids_field(config.get("bos_token_id"))), None),
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"model config: hidden_act {activation!r} is not implemented")
    if config.get("quantization_config"):
        method = dict(config["quantization_config"]).get("quant_method", "?")
        raise UnsupportedModelError(f"model config: quantization {method!r} is not implemented")
    for name in ("num_experts", "num_local_experts"):
        if config.get(name):
            raise UnsupportedModelError(f"model config: {name} (mixture of experts)")
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "attention_multiplier"):
        if config.get(name):
            raise UnsupportedModelError(f"model config: {name} is not implemented")


def _sliding_windows(config: Mapping[str, Any], model_type: str) -> tuple[int | None, ...]:
    num_layers = _require_int(config, "num_hidden_layers")
    if num_layers > MAX_LAYERS:  # before anything has so many entries
        raise UnsupportedModelError(f"model config: num_hidden_layers is more than {MAX_LAYERS}")
    window = config.get("sliding_window")
    # Qwen configs carry a window that is off unless they say otherwise.
    if model_type.startswith("qwen") and not config.get("use_sliding_window", False):
        window = None
    if window is None or model_type == "llama":
        return (None,) * num_layers
    layer_types = config.get("layer_types")
    if layer_types is None:
        first = int(config.get("max_window_layers", 0)) if model_type.startswith("qwen") else 0
        return tuple(int(window) if i >= first else None for i in range(num_layers))
    if len(layer_types) != num_layers:
        raise UnsupportedModelError(
            f"model config: layer_types has {len(layer_types)} entries for {num_layers} layers"
        )
    known: dict[str, int | None] = {"full_attention": None, "sliding_attention": int(window)}
    for kind in layer_types:
        if kind not in known:
            raise UnsupportedModelError(f"model config: layer type {kind!r} is not implemented")
    return tuple(known[kind] for kind in layer_types)


def _require_int(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise UnsupportedModelError(f"model config: {name} is missing or not an integer")
    return value


def token_ids_field(value: object) -> tuple[int, ...]:
    """Read a field that holds no token id, one, or a list of them.

    Raises:
        UnsupportedModelError: It holds something else.
    """
    if value is None:
        return ()
    if isinstance(value, int):
        return (value,)
    if isinstance(value, (list, tuple)) and all(isinstance(item, int) for item in value):
        return tuple(value)
    raise UnsupportedModelError(f"model config: {value!r} is not a token id or a list of them")
