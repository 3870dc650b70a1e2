"""What every model says of itself, whoever implements it, read from its config.json fields.

Called by the model runner and by the simulated worker alike, so both take the same models and
report the same shapes. Knows no weights; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from worker_svc.models.config import UnsupportedModelError, llama_config_from_hf
from worker_svc.models.decoder_config import decoder_config_from_hf
from worker_svc.models.registry import Implementation, select_implementation

if TYPE_CHECKING:
    from pagewire.engine_config import ModelImpl


class ModelShape(Protocol):
    """The fields that `LlamaConfig` and `DecoderConfig` have in common."""

    @property
    def architecture(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def sliding_windows(self) -> tuple[int | None, ...]: ...
    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...
    @property
    def bos_token_id(self) -> int | None: ...
    def select_max_model_len(self, wanted: int | None) -> int: ...


def read_implementation(fields: Mapping[str, Any], model_impl: ModelImpl) -> Implementation:
    """Who runs the model of these config.json fields.

    Raises:
        UnsupportedModelError: Nobody does, or `architectures` is no list of names.
    """
    architectures = fields.get("architectures") or ()
    if isinstance(architectures, str) or not all(isinstance(name, str) for name in architectures):
        raise UnsupportedModelError("model config: architectures is not a list of names")
    return select_implementation(architectures, model_impl)


def read_shape(fields: Mapping[str, Any], model_impl: ModelImpl) -> ModelShape:
    """The shape of the model, by whoever runs it.

    Raises:
        UnsupportedModelError: The model is not supported, or its config is damaged.
    """
    implementation = read_implementation(fields, model_impl)
    read = llama_config_from_hf if implementation.is_own else decoder_config_from_hf
    try:
        return read(fields, implementation.architecture)
    except (TypeError, ArithmeticError, AttributeError, KeyError) as error:
        raise UnsupportedModelError(
            "model config: a field has a value of the wrong kind"
        ) from error
