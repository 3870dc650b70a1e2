"""The shape of any decoder, read from the fields of a Hugging Face config.json.

Owns the names that families give to the same fields, and which layers have a sliding window where
a config says it in a family's own way. It says what a model is, for sizing and for the simulated
worker; what its layers compute is asked of the model itself (`transformers_probe`). No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker_svc.models.config import (
    MAX_LAYERS,
    UnsupportedModelError,
    check_max_model_len,
    token_ids_field,
)
from worker_svc.models.rope_config import RopeConfig

_HIDDEN_SIZE = ("hidden_size", "n_embd", "d_model")
_NUM_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_NUM_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_MAX_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
_LAYER_KINDS = ("full_attention", "sliding_attention")
# One layer of so many sees everything, the last of each run.
_FULL_EVERY = {"gemma2": 2, "cohere2": 4, "gemma3_text": 6}
# A window is off unless `use_sliding_window` says otherwise.
_WINDOW_IS_OPT_IN = ("qwen2", "qwen3", "qwen3_moe", "smollm3")
_EXTENDING_ROPE = ("linear", "yarn")


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """What sizing and requests need of a model; see `LlamaConfig` for the fields' meaning."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    longest_sequence: int
    """In tokens."""
    sliding_windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def select_max_model_len(self, wanted: int | None) -> int:
        """The longest sequence: what is wanted, or all that the model can.

        Raises:
            ValueError: The model cannot do that much.
        """
        return check_max_model_len(wanted, self.longest_sequence)


def decoder_config_from_hf(config: Mapping[str, Any], architecture: str) -> DecoderConfig:
    """Reads the fields of a config.json.

    Raises:
        UnsupportedModelError: A field is missing or no number, or the model is no plain decoder.
        ValueError: The same of the rotary embedding.
    """
    try:
        return _decoder_config(config, architecture)
    except (TypeError, KeyError, AttributeError, ArithmeticError) as error:
        # A damaged file: a list for a number, an infinite one, a division by it.
        raise UnsupportedModelError("model config: a field has a value of no use") from error


def _decoder_config(config: Mapping[str, Any], architecture: str) -> DecoderConfig:
    _refuse_unsupported(config)
    num_heads = _first_int(config, _NUM_HEADS)
    hidden_size = _first_int(config, _HIDDEN_SIZE)
    num_layers = _first_int(config, _NUM_LAYERS)
    if num_layers > MAX_LAYERS:  # before anything has so many entries
        raise UnsupportedModelError(f"model config: {num_layers} layers, more than {MAX_LAYERS}")
    kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim") or hidden_size // num_heads
    for name, value in (("num_key_value_heads", kv_heads), ("head_dim", head_dim)):
        if not isinstance(value, int) or value < 1:
            raise UnsupportedModelError(f"model config: {name} is {value!r}, not a size")
    return DecoderConfig(
        architecture=architecture,
        vocab_size=_first_int(config, ("vocab_size",)),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        longest_sequence=_longest_sequence(config),
        sliding_windows=_sliding_windows(config, num_layers),
        eos_token_ids=token_ids_field(config.get("eos_token_id")),
        bos_token_id=next(iter(token_ids_field(config.get("bos_token_id"))), None),
    )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    if config.get("is_encoder_decoder"):
        raise UnsupportedModelError("model config: is_encoder_decoder; only decoders are served")
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, Mapping) else "?"
        raise UnsupportedModelError(f"model config: quantization {method!r} is not implemented")


def _first_int(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    """The first of `names` that is set, a positive integer."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UnsupportedModelError(
                f"model config: {name} is {value!r}, not a positive integer"
            )
        return value
    raise UnsupportedModelError(f"model config: {names[0]} is missing")


def _longest_sequence(config: Mapping[str, Any]) -> int:
    positions = _first_int(config, _MAX_POSITIONS)
    params = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    if str(params.get("rope_type") or params.get("type")) not in _EXTENDING_ROPE:
        return positions
    # How much of a head is rotated does not change how far.
    rotation = {name: params[name] for name in params if name != "partial_rotary_factor"}
    fields = {"max_position_embeddings": positions, "rope_parameters": rotation}
    return RopeConfig.from_hf(fields).max_model_len(positions)


def _sliding_windows(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    window, model_type = config.get("sliding_window"), config.get("model_type")
    opt_in = config.get("use_sliding_window", model_type not in _WINDOW_IS_OPT_IN)
    kinds = config.get("layer_types")
    if kinds is not None:
        unknown = [kind for kind in kinds if kind not in _LAYER_KINDS]
        if unknown:
            raise UnsupportedModelError(
                f"model config: layer type {unknown[0]!r} is not implemented"
            )
        if len(kinds) != num_layers:
            raise UnsupportedModelError(
                f"model config: layer_types has {len(kinds)} entries for {num_layers} layers"
            )
    if not window or not opt_in:
        return (None,) * num_layers
    if kinds is not None:
        return tuple(int(window) if kind == "sliding_attention" else None for kind in kinds)
    every = config.get("sliding_window_pattern") or _FULL_EVERY.get(str(model_type), 0)
    return tuple(
        None if every and (layer + 1) % every == 0 else int(window) for layer in range(num_layers)
    )
